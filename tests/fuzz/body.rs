//! The counting body against its model, for any frames, limit and hint.

use http_body::{Body, SizeHint};
use tower_body_limit::LimitedBody;

use crate::{
    body_model::{bytes_of, limited},
    input::Input,
    support::{Hint, Script, drive::Drive},
};

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let limit = input.limit();
    let hint = match input.byte() % 4 {
        0 => Hint::Declared,
        1 => Hint::Undeclared,
        2 => Hint::Fixed(SizeHint::with_exact(input.limit())),
        _ => {
            let mut hint = SizeHint::new();
            hint.set_lower(input.limit());
            Hint::Fixed(hint)
        }
    };
    let steps = input.steps(usize::MAX);
    let expected = match &hint {
        Hint::Fixed(hint) if hint.lower() > limit => "breach end".into(),
        hint => limited(&steps, limit, matches!(hint, Hint::Declared)),
    };

    let script = Script::new(steps.clone(), hint.clone());
    let log = script.log();
    let mut drive = Drive::new(LimitedBody::new(script, limit));
    let ends_well = !expected.contains("breach");
    loop {
        let (size, at_its_end) = (drive.body.size_hint(), drive.body.is_end_stream());
        // It never announces a length that does not come. Whatever the wrapped body is lying about.
        if !matches!(hint, Hint::Fixed(_)) {
            assert!(ends_well || at_its_end == drive.error.is_some());
            assert!(ends_well || drive.error.is_some() || size.exact().is_none());
        }
        let before = drive.body.read();
        let step = drive.step().to_owned();
        let read = drive.body.read();
        assert_eq!(read, drive.data().len() as u64);
        assert_eq!(drive.body.remaining(), Some(limit - read));
        assert!(!at_its_end || matches!(&*step, "end" | "pending" | "failure" | "0"));
        assert_eq!(read > before, step.parse::<u64>().is_ok_and(|len| len > 0));
        if step == "breach" {
            assert!(log.dropped());
            let error = drive.too_large();
            assert_eq!(error.limit(), limit);
            assert!(error.read() > limit || error.declared().is_some_and(|bytes| bytes > limit));
        }
        if step == "end" {
            break;
        }
    }
    assert!(log.dropped());
    let polls = log.polls();
    for _ in 0..3 {
        assert_eq!(drive.step(), "end");
    }
    assert_eq!(log.polls(), polls);
    assert_eq!(drive.outline(), expected + " end end end");
    assert!(bytes_of(&steps).starts_with(&drive.data()));
}
