//! Does one thing so many times, for `instructions.sh`, which counts the instructions of it.

mod support;

use std::env;

use support::{
    bodies::{self, Frames, Reader},
    services::{Case, serve_as},
};

const FRAME: &str = "frame, ";

const USAGE: &str = "\
run benches/instructions.sh instead, which counts under valgrind:
  instructions list
  instructions frame, <reader> <contender> <times>
  instructions <case of a request> <contender> <times>";

fn main() {
    // What cargo says to every benchmark is of no use here.
    let args: Vec<_> = env::args()
        .skip(1)
        .filter(|it| !it.starts_with("--"))
        .collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["list"] => list(),
        [what, contender, times] if what.starts_with(FRAME) => {
            let frames = Frames::new(1024, 1024);
            let reader = Reader::ALL
                .into_iter()
                .find(|it| what.ends_with(&it.to_string()));
            let reader = reader.expect("a reader from the list");
            for _ in 0..number(times) {
                reader.read_as(contender, frames.clone());
            }
        }
        [case, contender, times] => serve(case, contender, number(times)),
        _ => println!("{USAGE}"),
    }
}

fn number(times: &str) -> u64 {
    times.parse().expect("a number of times")
}

/// What can be measured: a line for each, with the units of one time.
fn list() {
    for reader in Reader::ALL {
        for contender in bodies::CONTENDERS {
            println!("{FRAME}{reader}\t{contender}\t1024");
        }
    }
    for case in Case::ALL {
        for contender in case.contenders() {
            println!("{case}\t{contender}\t1");
        }
    }
}

fn serve(case: &str, contender: &str, times: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without I/O");
    let _entered = runtime.enter();
    let case = Case::ALL.into_iter().find(|it| it.to_string() == case);
    let make = case.expect("a case from the list").requests();
    let times = usize::try_from(times).expect("not that many");
    // As many in any case, so that the difference between two runs is made of calls alone.
    let mut requests: Vec<_> = (0..times.max(1000)).map(|_| make()).collect();
    let mut serve = serve_as(contender);
    for request in requests.drain(..times) {
        serve(request);
    }
    std::mem::forget(requests);
}
