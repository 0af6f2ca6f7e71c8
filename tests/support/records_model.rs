//! What a limit on records has to come to, found out from the whole text at once.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::{
    pin::pin,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body::Body;
use http_body_util::BodyExt;
use tower_body_limit::{Error, RecordKind, RecordLimitedBody, Subject, TooLarge};

use crate::support::{Hint, Script, Step};

/// What came out of a body.
#[derive(Debug, Default, PartialEq, Eq)]
struct Run {
    data: Vec<u8>,
    frames: Vec<Bytes>,
    error: Option<TooLarge>,
    reports: Vec<TooLarge>,
}

fn read(text: &[u8], cuts: &[usize], kind: RecordKind, max: u64, skips: bool) -> Run {
    let script = Script::new(steps(text, cuts), Hint::Undeclared);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&reports);
    let mut body = RecordLimitedBody::new(script, kind, max)
        .on_breach(move |error| seen.lock().unwrap().push(error.clone()));
    if skips {
        body = body.skip_oversized();
    }
    let mut run = Run::default();
    {
        let mut body = pin!(body);
        // Always ready, but for the turns that it gives to others.
        let mut next = || loop {
            if let Some(frame) = body.frame().now_or_never() {
                return frame;
            }
        };
        while let Some(frame) = next() {
            match frame {
                Ok(frame) => run.frames.push(frame.into_data().unwrap()),
                Err(Error::TooLarge(error)) => run.error = Some(error),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(next().is_none());
        assert!(body.is_end_stream());
    }
    run.data = run.frames.concat();
    run.reports = std::mem::take(&mut *reports.lock().unwrap());
    run
}

fn steps(text: &[u8], cuts: &[usize]) -> Vec<Step> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|pair| Step::Data(Bytes::copy_from_slice(&text[pair[0]..pair[1]])))
        .collect()
}

/// A line, its end, and where it starts.
#[derive(Clone, Copy, Debug)]
struct Line<'a> {
    start: usize,
    text: &'a [u8],
    end: &'a [u8],
}

impl Line<'_> {
    fn is_comment(&self) -> bool {
        self.text.first() == Some(&b':')
    }

    fn is_blank(&self) -> bool {
        self.text.is_empty() && !self.end.is_empty()
    }

    fn raw(&self) -> Vec<u8> {
        [self.text, self.end].concat()
    }
}

fn lines_of<'a>(text: &'a [u8], ends: &[&str]) -> Vec<Line<'a>> {
    let mut lines = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < text.len() {
        let end = ends
            .iter()
            .find(|end| text[at..].starts_with(end.as_bytes()));
        let len = end.map_or(0, |end| end.len());
        if len > 0 {
            let (line, end) = (&text[start..at], &text[at..at + len]);
            lines.push(Line {
                start,
                text: line,
                end,
            });
            start = at + len;
        }
        at += len.max(1);
    }
    let (line, end) = (&text[start..], &text[at..]);
    lines.push(Line {
        start,
        text: line,
        end,
    });
    lines
}

/// What should come out: with a failure, where and after which bytes; with skipping, all of it, and
/// what is removed, by its start, its size, and whether it has an end.
#[derive(Debug, Default)]
struct Expected {
    /// The start of the first record to become too large, and the byte at which it does.
    breach: Option<(usize, usize)>,
    kept: Vec<u8>,
    removed: Vec<(u64, u64)>,
}

fn expected_lines(text: &[u8], max: usize) -> Expected {
    let mut expected = Expected::default();
    for line in lines_of(text, &["\n"]) {
        let counted = line.text.strip_suffix(b"\r").unwrap_or(line.text).len();
        if counted <= max {
            expected.kept.extend(line.raw());
            continue;
        }
        expected.removed.push((line.start as u64, counted as u64));
        expected
            .breach
            .get_or_insert((line.start, line.start + max));
    }
    expected
}

fn expected_events(text: &[u8], max: usize) -> Expected {
    let mut expected = Expected::default();
    // A stream that ends inside a byte order mark has nothing that counts.
    let mark = "\u{feff}".as_bytes();
    let mark = if text.starts_with(mark) || mark.starts_with(text) {
        text.len().min(3)
    } else {
        0
    };
    expected.kept.extend(&text[..mark]);
    let mut event: Vec<Line<'_>> = Vec::new();
    for mut line in lines_of(&text[mark..], &["\r\n", "\n", "\r"]) {
        line.start += mark;
        if line.is_comment() && line.text.len() > max {
            expected
                .breach
                .get_or_insert((line.start, line.start + max));
            expected
                .removed
                .push((line.start as u64, line.text.len() as u64));
        }
        if line.is_blank() {
            end_event(&mut expected, &event, Some(line), max);
            event.clear();
        } else if line.is_comment() && event.is_empty() {
            if line.text.len() <= max {
                expected.kept.extend(line.raw());
            }
        } else if !line.text.is_empty() {
            event.push(line);
            let size = size_of(&event);
            if !line.is_comment() && size > max {
                let at = line.start + line.text.len() - (size - max);
                expected.breach.get_or_insert((event[0].start, at));
            }
        }
    }
    end_event(&mut expected, &event, None, max);
    expected
}

fn size_of(event: &[Line<'_>]) -> usize {
    let fields = event.iter().filter(|line| !line.is_comment());
    fields.map(|line| line.text.len()).sum()
}

fn end_event(expected: &mut Expected, event: &[Line<'_>], end: Option<Line<'_>>, max: usize) {
    let size = size_of(event);
    let raw: usize = event.iter().map(|line| line.raw().len()).sum();
    if size <= max {
        for line in event {
            if raw <= max || !line.is_comment() {
                expected.kept.extend(line.raw());
            }
        }
        expected
            .kept
            .extend(end.map(|end| end.raw()).unwrap_or_default());
        return;
    }
    expected.removed.push((event[0].start as u64, size as u64));
    if end.is_some() {
        let (id, retry) = remnant_of(event, max);
        for line in [&id, &retry].into_iter().flatten() {
            expected.kept.extend([line, &b"\n"[..]].concat());
        }
        if id.or(retry).is_some() {
            expected.kept.push(b'\n');
        }
    }
}

fn remnant_of<'a>(event: &[Line<'a>], max: usize) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
    let (mut id, mut retry): (Option<&[u8]>, Option<&[u8]>) = (None, None);
    let len = |line: Option<&[u8]>| line.map_or(0, <[u8]>::len);
    for line in event.iter().map(|line| line.text) {
        let name = line.split(|&byte| byte == b':').next().unwrap();
        let value = line.get(name.len() + 1..).unwrap_or_default();
        if name == b"id" && !value.contains(&0) {
            id = (len(retry) + line.len() <= max).then_some(line);
        }
        if name == b"retry" && len(id) + len(retry) + line.len() <= max {
            let digits = value.strip_prefix(b" ").unwrap_or(value);
            if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
                retry = Some(line);
            }
        }
    }
    (id, retry)
}

fn expected(text: &[u8], kind: RecordKind, max: u64) -> Expected {
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    match kind {
        RecordKind::Lines => expected_lines(text, max),
        _ => expected_events(text, max),
    }
}

/// Asserts that a body does what is expected, failing and skipping.
pub fn check(text: &[u8], cuts: &[usize], kind: RecordKind, max: u64) {
    let expected = expected(text, kind, max);
    let shown = String::from_utf8_lossy(text);

    let failing = read(text, cuts, kind, max, false);
    match (&expected.breach, &failing.error) {
        (None, None) => assert_eq!(failing.data, text, "{shown:?}"),
        (Some((start, at)), Some(error)) => {
            assert_eq!(error.record_offset(), Some(*start as u64), "{shown:?}");
            assert_eq!((error.limit(), error.read()), (max, max + 1));
            assert_eq!(error.subject(), Subject::Record);
            assert!(!error.read_is_total());
            assert_eq!(failing.reports.iter().collect::<Vec<_>>(), [error]);
            // All that comes before the record, and no byte more of it than may pass.
            assert!(text.starts_with(&failing.data), "{shown:?}");
            let passed = failing.data.len();
            let slack = match kind {
                RecordKind::Lines => 1,
                _ if *start == 0 => 2,
                _ => 0,
            };
            assert!(
                (*start..=at + slack).contains(&passed),
                "{shown:?}: {start} {passed} {at}"
            );
        }
        other => panic!("{shown:?}: {other:?}"),
    }

    let skipping = read(text, cuts, kind, max, true);
    let show = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
    assert_eq!(show(&skipping.data), show(&expected.kept), "{shown:?}");
    assert_eq!(skipping.error, None);
    let reported: Vec<_> = skipping
        .reports
        .iter()
        .map(|error| {
            assert!(error.read_is_total() && error.limit() == max);
            (error.record_offset().unwrap(), error.read())
        })
        .collect();
    assert_eq!(reported, expected.removed, "{shown:?}");
}

pub const KINDS: [RecordKind; 2] = [RecordKind::Sse, RecordKind::Lines];
