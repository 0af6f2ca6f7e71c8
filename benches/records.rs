//! What it costs to look for records, next to a bare search and to parsers that gather them.
//!
//! `cargo bench --features records --bench records`, with `-- --quick` for a short run. All contenders
//! of a line are run in turns, and the median of each is shown.
//!
//! | column | what it does |
//! |---|---|
//! | miss | `memchr` for a byte that is not there: the speed of a search without a hit |
//! | ends | one `memchr` for each LF |
//! | fail, skip | `RecordLimitedBody`, and with `skip_oversized` |
//! | parser | tokio-util's `LinesCodec`, or eventsource-stream, with the same frames |

#![allow(missing_docs)]

mod support;

use std::{
    convert::Infallible,
    hint::black_box,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use eventsource_stream::Eventsource;
use futures_util::{Stream, stream};
use http_body::{Body, Frame};
use support::Settings;
use tokio_util::codec::{Decoder, LinesCodec};
use tower_body_limit::{BodyLimitExt, RecordKind};

struct Frames(std::vec::IntoIter<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|data| Ok(Frame::data(data))))
    }
}

fn limited(frames: Vec<Bytes>, kind: RecordKind, max: u64, skips: bool) -> usize {
    let mut body = Frames(frames.into_iter()).limit_records(kind, max);
    if skips {
        body = body.skip_oversized();
    }
    let mut body = pin!(body);
    let mut context = Context::from_waker(Waker::noop());
    let mut bytes = 0;
    loop {
        match body.as_mut().poll_frame(&mut context) {
            Poll::Ready(Some(frame)) => bytes += frame.unwrap().data_ref().map_or(0, Bytes::len),
            Poll::Ready(None) => return bytes,
            Poll::Pending => {}
        }
    }
}

fn miss(frames: &[Bytes]) -> usize {
    frames
        .iter()
        .filter_map(|frame| memchr::memchr(0, frame))
        .count()
}

fn ends(frames: &[Bytes]) -> usize {
    frames
        .iter()
        .map(|frame| memchr::memchr_iter(b'\n', frame).fold(0, |n, at| n ^ at))
        .sum()
}

fn parser(frames: Vec<Bytes>, kind: RecordKind) -> usize {
    if kind == RecordKind::Lines {
        let mut codec = LinesCodec::new();
        let mut buffer = BytesMut::new();
        let mut count = 0;
        for frame in frames {
            buffer.extend_from_slice(&frame);
            while let Some(line) = codec.decode(&mut buffer).unwrap() {
                count += line.len();
            }
        }
        return count;
    }
    let frames = stream::iter(frames.into_iter().map(Ok::<_, Infallible>));
    let mut events = pin!(frames.eventsource());
    let mut context = Context::from_waker(Waker::noop());
    let mut count = 0;
    while let Poll::Ready(Some(event)) = events.as_mut().poll_next(&mut context) {
        count += event.unwrap().data.len();
    }
    count
}

struct Case {
    name: &'static str,
    kind: RecordKind,
    record: String,
    frame: usize,
    max: u64,
    budget: Budget,
}

/// What `fail` is measured by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Budget {
    /// One `memchr` for each line end, and ten times the parser.
    Short,
    /// Half of a search without a hit. (A parser of long lines is a search, and a copy.)
    Long,
    /// Nothing: tight limits and tiny frames, shown to be known.
    None,
}

impl Budget {
    fn is_met(self, fail: f64, miss: f64, ends: f64, parser: f64) -> bool {
        match self {
            Self::Short => fail >= ends && fail >= 10.0 * parser,
            Self::Long => fail >= miss / 2.0,
            Self::None => true,
        }
    }
}

fn cases() -> Vec<Case> {
    use Budget::{Long, Short};
    const FRAME: usize = 16 * 1024;
    const MAX: u64 = 16 * 1024 * 1024;
    let line = |len: usize| format!("{{\"text\":\"{}\"}}\n", "x".repeat(len - 12));
    let short_event = "data: {\"delta\":\"some text\"}\n\n".to_owned();
    let forty = format!(
        "id: 1\n{}\n",
        "data: twelve bytes and some more\n".repeat(39)
    );
    let many_lines = format!("{}\n", "data: short\n".repeat(5_000_000 / 12));
    let one_line = format!("data: {}\n\n", "x".repeat(5_000_000));
    let case = |name, kind, record, frame, max, budget| Case {
        name,
        kind,
        record,
        frame,
        max,
        budget,
    };
    use RecordKind::{Lines, Sse};
    let mut cases = vec![
        case("lines of 40 B", Lines, line(40), FRAME, MAX, Short),
        case(
            "lines of 40 B, limit 64 B",
            Lines,
            line(40),
            FRAME,
            64,
            Budget::None,
        ),
        case("lines of 4 KiB", Lines, line(4096), FRAME, MAX, Long),
        case("lines of 1 MiB", Lines, line(1024 * 1024), FRAME, MAX, Long),
        case(
            "events of 1 line",
            Sse,
            short_event.clone(),
            FRAME,
            MAX,
            Short,
        ),
        case(
            "events of 1 line, limit 64 B",
            Sse,
            short_event.clone(),
            FRAME,
            64,
            Budget::None,
        ),
        case(
            "events of 1 line, each a frame",
            Sse,
            short_event,
            0,
            MAX,
            Budget::None,
        ),
        case("events of 40 lines", Sse, forty, FRAME, MAX, Short),
        case(
            "events of 5 MB, 12 B lines",
            Sse,
            many_lines,
            FRAME,
            MAX,
            Short,
        ),
        case("events of 5 MB, one line", Sse, one_line, FRAME, MAX, Long),
    ];
    let with_crlf = cases
        .iter()
        .filter(|case| case.max > 64 && case.frame > 0)
        .map(|case| Case {
            name: Box::leak(format!("{}, CRLF", case.name).into_boxed_str()),
            record: case.record.replace('\n', "\r\n"),
            ..*case
        });
    let with_crlf: Vec<_> = with_crlf.collect();
    cases.extend(with_crlf);
    cases
}

impl Case {
    fn frames(&self, bytes: usize) -> Vec<Bytes> {
        let times = bytes.div_ceil(self.record.len()).max(1);
        let text = Bytes::from(self.record.repeat(times));
        let frame = if self.frame == 0 {
            self.record.len()
        } else {
            self.frame
        };
        (0..text.len())
            .step_by(frame)
            .map(|at| text.slice(at..text.len().min(at + frame)))
            .collect()
    }
}

fn main() {
    let settings = Settings::from_args();
    let peers = ["memchr", "tokio-util", "eventsource-stream"];
    settings.introduce("Records", &peers);
    let (bytes, rounds) = settings.pick((10_000_000, 25), (2_000_000, 3));
    println!(
        "medians of {rounds} rounds (the parser: of a fifth), {} MB\n",
        bytes / 1_000_000
    );
    println!(
        "{:38} {:>7} {:>7} {:>7} {:>7} {:>7}   {:>9} {:>9} {:>11}",
        "GB/s", "miss", "ends", "fail", "skip", "parser", "fail/miss", "fail/ends", "fail/parser",
    );
    for case in cases() {
        let frames = case.frames(bytes);
        let total: usize = frames.iter().map(Bytes::len).sum();
        let contenders: [&dyn Fn(Vec<Bytes>) -> usize; 5] = [
            &|frames| miss(&frames),
            &|frames| ends(&frames),
            &|frames| limited(frames, case.kind, case.max, false),
            &|frames| limited(frames, case.kind, case.max, true),
            &|frames| parser(frames, case.kind),
        ];
        for limited in &contenders[2..4] {
            assert_eq!(
                limited(frames.clone()),
                total,
                "{}: everything passes",
                case.name
            );
        }
        let mut times = [const { Vec::new() }; 5];
        for round in 0..rounds {
            // The last one is so much slower that it would take most of the time.
            let fast = if round % 5 == 0 {
                contenders.len()
            } else {
                contenders.len() - 1
            };
            for (contender, times) in contenders[..fast].iter().zip(&mut times) {
                let frames = frames.clone();
                let start = Instant::now();
                black_box(contender(black_box(frames)));
                times.push(start.elapsed().as_secs_f64());
            }
        }
        let [miss, ends, fail, skip, parser] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            total as f64 / times[times.len() / 2] / 1e9
        });
        let is_met = case.budget.is_met(fail, miss, ends, parser);
        println!(
            "{:38} {miss:7.2} {ends:7.2} {fail:7.2} {skip:7.2} {parser:7.2}   {:9.2} {:9.2} {:11.1} {}",
            case.name,
            fail / miss,
            fail / ends,
            fail / parser,
            if is_met { "" } else { "below the budget" },
        );
    }
}
