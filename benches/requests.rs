//! What limits cost per request, through a service that reads its request and gives a short answer.
//!
//! ```sh
//! cargo bench --bench requests
//! ```

mod support;

use support::{
    Contender, Results, Settings, Table, compete, number,
    services::{CONTENDERS, Case, OURS, OURS_BOTH, PEERS_BOTH, TOWER_HTTP, serve_as},
};

const BATCH: u64 = 256;

fn main() {
    let settings = Settings::from_args();
    settings.introduce("Cost per request", &support::PEERS);
    // Refused requests are drained, and a drain needs a clock.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without I/O");
    let _entered = runtime.enter();

    let ratios = ["ours / tower-http", "both / tower-http + Limited"];
    let columns = || ["request"].into_iter().chain(CONTENDERS);
    let mut times = Table::new(columns().chain(ratios));
    let mut allocations = Table::new(columns());
    let mut results = Results::default();
    for case in Case::ALL {
        let make = case.requests();
        let contenders = case.contenders().map(|name| {
            let mut serve = serve_as(name);
            let batch = || (0..BATCH).map(|_| make()).collect::<Vec<_>>();
            Contender::prepared(name, settings, batch, move |batch| {
                batch.into_iter().for_each(|request| {
                    serve(request);
                });
                BATCH
            })
        });
        let outcome = compete(settings.rounds(), contenders.collect());
        let mut row = vec![case.to_string()];
        let mut counts = row.clone();
        for name in CONTENDERS {
            if case.contenders().any(|it| it == name) {
                row.push(number(outcome.median(name)));
                counts.push(allocations_of(name, case).to_string());
                results.add(case.to_string(), name, outcome.median(name));
            } else {
                row.push("-".into());
                counts.push("-".into());
            }
        }
        row.push(number(outcome.ratio(OURS, TOWER_HTTP)));
        row.push(number(outcome.ratio(OURS_BOTH, PEERS_BOTH)));
        times.row(row);
        allocations.row(counts);
    }
    let rounds = settings.rounds();
    times.print(&format!("ns per request, medians of {rounds} rounds"));
    allocations
        .print("Allocations per request (budget: none of ours without a body, one with a body)");
    results.save("requests", settings);
}

fn allocations_of(contender: &str, case: Case) -> u64 {
    let mut serve = serve_as(contender);
    let make = case.requests();
    serve(make());
    let request = make();
    let counted = allocation_counter::measure(|| {
        serve(request);
    });
    counted.count_total
}
