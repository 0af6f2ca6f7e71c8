//! Reading a whole body into memory within a limit.

mod support;

use std::task::Poll;

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use http_body::SizeHint;
use http_body_util::Full;
use support::{
    Hint, Script,
    Step::{self, Fail, Pending, Trailers},
    VARIANTS, data,
    drive::{assert_gives_way, poll_once},
    miri::usually,
};
use tower_body_limit::{BodyLimitExt, Collected, Error, TooLarge};

async fn collect(steps: &[Step], hint: Hint, limit: u64) -> Result<Collected, Error> {
    Script::new(steps.to_vec(), hint)
        .collect_limited(limit)
        .await
}

#[tokio::test]
async fn a_body_within_the_limit_is_collected_with_its_trailers() {
    let table = [
        (vec![], 0),
        (vec![data(0)], 0),
        (vec![data(10)], 10),
        (vec![data(0), data(10), data(0)], 10),
        (vec![data(4), Pending, data(6)], 10),
        ((0..10).map(|_| data(1)).collect(), 10),
    ];
    for (steps, len) in table {
        for variant in VARIANTS {
            let collected = collect(&steps, variant.clone(), 10).await.unwrap();
            assert_eq!(collected.bytes(), &[b'x'; 10][..len]);
            assert!(collected.trailers().is_none());

            let steps = [&steps[..], &[Trailers]].concat();
            let collected = collect(&steps, variant, len as u64).await.unwrap();
            assert_eq!(collected.trailers().unwrap()["x-trailer"], "end");
            assert_eq!(collected.into_bytes(), &[b'x'; 10][..len]);
        }
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_an_error() {
    let table = [
        (vec![data(1)], 0),
        (vec![data(11)], 10),
        (vec![data(4), Pending, data(7), Trailers], 10),
        ((0..11).map(|_| data(1)).collect(), 10),
        (vec![data(10), data(1), Fail], 10),
    ];
    for (steps, limit) in table {
        for variant in VARIANTS {
            let script = Script::new(steps.clone(), variant.clone());
            let (log, declared) = (script.log(), matches!(variant, Hint::Declared));
            let error = script.collect_limited(limit).await.unwrap_err();
            assert_eq!(TooLarge::find(&error).unwrap().limit(), limit);
            assert_eq!(log.polls() == 0, declared);
        }
    }
}

#[tokio::test]
async fn an_inner_failure_is_itself() {
    for variant in VARIANTS {
        let error = collect(&[data(4), data(6), Fail], variant, 10)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Body(_)));
        assert_eq!(TooLarge::find(&error), None);
    }
}

#[tokio::test]
async fn the_only_frame_is_not_copied() {
    for variant in VARIANTS {
        let frame = Bytes::from(vec![b'x'; 10]);
        let steps = [data(0), Step::Data(frame.clone()), data(0), Trailers];
        let collected = collect(&steps, variant, 10).await.unwrap();
        assert_eq!(collected.bytes().as_ptr(), frame.as_ptr());
    }
}

#[tokio::test]
async fn frames_are_gathered_in_order_whatever_is_declared() {
    let frames = (0..200_u8).map(|byte| Step::Data(Bytes::from(vec![byte; byte.into()])));
    let expected = (0..200_u8)
        .flat_map(|byte| vec![byte; byte.into()])
        .collect::<Vec<_>>();
    let len = expected.len() as u64;
    let lies = [0, 1, len - 1].map(|bytes| Hint::Fixed(SizeHint::with_exact(bytes)));
    for hint in VARIANTS.into_iter().chain(lies) {
        let steps = frames.clone().collect::<Vec<_>>();
        let collected = collect(&steps, hint, len).await.unwrap();
        assert_eq!(collected.bytes(), &expected);
    }
}

#[tokio::test]
async fn data_of_any_type_is_collected() {
    let chained = Full::new(b"ten ".chain(&b"bytes."[..]));
    assert_eq!(
        chained.collect_limited(10).await.unwrap().into_bytes(),
        "ten bytes."
    );
}

#[test]
fn frames_that_are_always_ready_give_way_to_other_tasks() {
    let script = Script::endless(data(0));
    let log = script.log();
    let collecting = Box::pin(script.collect_limited(10));
    assert_gives_way(collecting, &log);
}

#[test]
fn giving_way_loses_nothing() {
    const LEN: usize = usually(1000, 100);
    for variant in VARIANTS {
        let steps = (0..LEN).flat_map(|_| [data(0), data(1)]);
        let mut collecting = Box::pin(Script::new(steps, variant).collect_limited(LEN as u64));
        let collected = loop {
            if let (Poll::Ready(collected), _) = poll_once(&mut collecting) {
                break collected.unwrap();
            }
        };
        assert_eq!(collected.bytes().len(), LEN);
    }
}

#[test]
fn nothing_is_polled_before_the_future_is() {
    for variant in VARIANTS {
        let script = Script::new([data(4)], variant);
        let log = script.log();
        let collecting = script.collect_limited(10);
        assert_eq!(log.polls(), 0);
        assert_eq!(collecting.now_or_never().unwrap().unwrap().bytes().len(), 4);
    }
}
