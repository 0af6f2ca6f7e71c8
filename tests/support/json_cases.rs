//! JSON documents and settings, made up at random.

#![allow(dead_code, missing_docs, unreachable_pub, unused_macros)]

use proptest::{prelude::*, sample::select};

use super::json_oracle::{Cut, Node, Place, Spec};

/// Keys as they are written. Some are the same in other words, some are wanted for other reasons.
const KEYS: &[&str] = &[
    r#""a""#,
    r#""b""#,
    r#""\u0061""#,
    r#""a/b""#,
    r#""m~n""#,
    r#""""#,
    r#""é""#,
    r#""\u00e9""#,
    r#""\ud83d\ude00""#,
    r#""😀""#,
    r#""\ud83d""#,
    r#""id""#,
    r#""jsonrpc""#,
    r#""truncated""#,
    r#""tot\u0061l""#,
    r#""0""#,
    r#""c""#,
    r#""d""#,
    r#""e""#,
    r#""f""#,
    r#""g""#,
];

const SCALARS: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "-0",
    "7",
    "40",
    "1e400",
    "-1.50E+3",
    "12345678901234567890123",
    "18446744073709551615",
    r#""""#,
    r#""a""#,
    r#""\"""#,
    r#""\\""#,
    r#""\\\\\"""#,
    r#"",[{\\""#,
    r#""\ud83d\ude00\ud83d\ude00""#,
    r#""\udc00\ud800x""#,
    r#""żółw €😀""#,
    r#""a longer text, with \n escapes \u00e9""#,
    r#""]}\\\"""#,
    r#""\/\b\f\n\r\t""#,
    "\"\u{7f}\"",
];

pub fn node() -> impl Strategy<Value = Node> {
    let scalar = select(SCALARS).prop_map(|written| Node::Scalar(written.to_owned()));
    scalar.prop_recursive(5, 40, 6, |inner| {
        let key = select(KEYS).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..7).prop_map(Node::Array),
            prop::collection::vec((key, inner), 0..6).prop_map(Node::Object),
        ]
    })
}

/// A long array in an object in an object, and things around it, as servers answer.
fn envelope() -> impl Strategy<Value = Node> {
    let key = || select(KEYS).prop_map(str::to_owned);
    let members = |most: usize| prop::collection::vec((key(), small()), 0..most);
    let items = (small(), prop::collection::vec(small(), 0..40));
    let items =
        items.prop_map(|(first, rest)| Node::Array([first].into_iter().chain(rest).collect()));
    let text = prop::collection::vec(select(SCALARS), 1..12).prop_map(|parts| {
        let parts = parts
            .iter()
            .filter_map(|part| part.strip_prefix('"')?.strip_suffix('"'));
        Node::Scalar(format!("\"{}\"", parts.collect::<String>()))
    });
    let long = prop_oneof![3 => items, 1 => text];
    let holder = (members(3), key(), long.clone(), members(4));
    let holder = holder.prop_map(|(mut before, key, long, after)| {
        before.push((key, long));
        before.extend(after);
        Node::Object(before)
    });
    (
        members(3),
        prop::collection::vec((key(), prop_oneof![holder, long]), 1..4),
        members(4),
    )
        .prop_map(|(mut before, inner, after)| {
            before.extend(inner);
            before.extend(after);
            Node::Object(before)
        })
}

fn small() -> impl Strategy<Value = Node> {
    let scalar = || select(SCALARS).prop_map(|written| Node::Scalar(written.to_owned()));
    prop_oneof![
        3 => scalar(),
        1 => prop::collection::vec(scalar(), 0..4).prop_map(Node::Array),
        1 => scalar().prop_map(|value| Node::Object(vec![("\"k\"".to_owned(), value)])),
    ]
}

/// A document, with whitespace wherever it may be.
pub fn written() -> impl Strategy<Value = (Node, String)> {
    let node = prop_oneof![1 => node(), 3 => envelope()];
    (node, prop::collection::vec(0_u8..8, 1..20), any::<bool>()).prop_map(|(node, spaces, mark)| {
        let mut spaces = spaces.into_iter().cycle();
        let mut text = String::from(if mark { "\u{feff}" } else { "" });
        write(&node, &mut spaces, &mut text);
        (node, text)
    })
}

fn write(node: &Node, spaces: &mut impl Iterator<Item = u8>, text: &mut String) {
    let mut space = |text: &mut String| {
        text.push_str(match spaces.next().unwrap() {
            0 => " ",
            1 => "\n          ",
            2 => "\r\n\t",
            _ => "",
        });
    };
    space(text);
    match node {
        Node::Scalar(written) => text.push_str(written),
        Node::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                write(item, spaces, text);
            }
            text.push(']');
        }
        Node::Object(members) => {
            text.push('{');
            for (index, (key, value)) in members.iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                write(&Node::Scalar(key.clone()), spaces, text);
                text.push(':');
                write(value, spaces, text);
            }
            text.push('}');
        }
    }
    if let Some(0..2) = spaces.next() {
        text.push(' ');
    }
}

/// All pointers into a document by the kind of what they lead to: arrays, strings, objects, others.
fn pointers(node: &Node, path: &[String], found: &mut [Vec<Vec<String>>; 4]) {
    let below = |token: String| [path, &[token]].concat();
    let kind = match node {
        Node::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, &below(index.to_string()), found);
            }
            0
        }
        Node::Scalar(written) if written.starts_with('"') => 1,
        Node::Object(members) => {
            for (key, value) in members {
                // What is no text has no pointer.
                if let Ok(key) = serde_json::from_str(key) {
                    pointers(value, &below(key), found);
                }
            }
            2
        }
        Node::Scalar(_) => 3,
    };
    found[kind].push(path.to_vec());
}

/// A document and settings that mean something for it, mostly.
pub fn case() -> impl Strategy<Value = (String, Spec)> {
    written().prop_flat_map(|(node, text)| {
        let mut found = Default::default();
        pointers(&node, &[], &mut found);
        let stray = vec![
            Vec::new(),
            vec!["a".to_owned()],
            vec!["b".to_owned(), "new \"one\"".to_owned()],
            vec!["c".to_owned(), "-".to_owned()],
        ];
        let of = |kinds: &[usize]| {
            let mut all: Vec<_> = kinds.iter().flat_map(|&kind| found[kind].clone()).collect();
            all.extend(stray.clone());
            let last = all.len() as u32 - 1;
            // The outer ones come late, and matter most.
            (0..=last, any::<bool>()).prop_map(move |(index, outer)| {
                all[if outer {
                    index.max(last.saturating_sub(4))
                } else {
                    index
                } as usize]
                    .clone()
            })
        };
        let cut = prop_oneof![
            1 => Just(Cut::Nothing),
            5 => of(&[0]).prop_map(Cut::Array),
            4 => of(&[2, 0]).prop_map(Cut::Largest),
            3 => of(&[1]).prop_map(Cut::String),
        ];
        let place = prop_oneof![
            3 => Just(Place::Default),
            2 => of(&[2]).prop_map(Place::At),
            1 => of(&[2]).prop_map(|mut path| {
                path.push("_meta/\u{e9}".to_owned());
                Place::At(path)
            }),
            1 => Just(Place::Headers),
        ];
        let note = select(vec![
            None,
            Some("{kept} of {total} \"items\"; offset {next_offset}".to_owned()),
            Some("{dropped}{dropped}{dropped}\u{e9}\n{no}".to_owned()),
            Some(String::new()),
        ]);
        let offset = select(vec![
            None,
            None,
            Some(0),
            Some(8),
            Some(97),
            Some(u64::MAX - 3),
        ]);
        let original = prop_oneof![1 => of(&[2, 0]), 2 => Just(Vec::new())];
        let copies = prop::collection::vec((of(&[1]), original), 0..3);
        let offset_at = prop::option::weighted(0.3, of(&[3, 3, 1]));
        (
            Just(text),
            cut,
            copies,
            place,
            note,
            any::<bool>(),
            offset,
            offset_at,
        )
            .prop_map(
                |(text, cut, copies, place, note, total, offset, offset_at)| {
                    let spec = Spec {
                        cut,
                        copies,
                        place,
                        note,
                        total,
                        offset,
                        offset_at,
                    };
                    (text, spec)
                },
            )
    })
}

/// The settings in the words of the crate, or of a part of it that is tested by itself.
macro_rules! settings {
    ($spec:expr, $limit:expr) => {{
        use support::json_oracle::{Cut, Place, pointer};
        let (spec, limit) = (&$spec, $limit);
        let at = |tokens: &[String]| pointer(tokens).parse::<Pointer>().unwrap();
        let mut fit = match &spec.cut {
            Cut::Nothing => Fit::compact(limit),
            Cut::Array(tokens) => Fit::array_at(limit, at(tokens)),
            Cut::Largest(tokens) => Fit::largest_array_in(limit, at(tokens)),
            Cut::String(tokens) => Fit::string_at(limit, at(tokens)),
        };
        for (copy, original) in &spec.copies {
            fit = fit.copy_at(at(copy), at(original));
        }
        fit = match &spec.place {
            Place::Default => fit,
            Place::At(tokens) => fit.markers_at(at(tokens)),
            Place::Headers => fit.markers_in_headers(),
        };
        if let Some(note) = &spec.note {
            fit = fit.note(note);
        }
        if spec.total {
            fit = fit.marker(Marker::Total, "total");
        }
        if let Some(offset) = spec.offset {
            fit = fit.offset(offset);
        }
        if let Some(tokens) = &spec.offset_at {
            fit = fit.offset_at(at(tokens));
        }
        fit
    }};
}
pub(crate) use settings;
