//! Fitting JSON documents, against a slow oracle and case by case.
#![cfg(feature = "json")]

mod support {
    pub mod json_cases;
    pub mod json_oracle;
    pub mod miri;
}

use std::str;

use proptest::prelude::*;
use serde::de::IgnoredAny;
use support::{
    json_cases::{self, settings},
    json_oracle::{self, Cut, Place, Spec},
    miri::usually,
};
use tower_body_limit::json::{Fit, Marker, Pointer, Unfit, UnfitReason, fit};

fn is_valid(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// Compares the outcome at each limit with that of the oracle.
fn check(text: &str, spec: &Spec) -> Result<(), TestCaseError> {
    for limit in (0..=text.len() as u64).step_by(usually(1, text.len() / 3 + 1)) {
        let fitted = fit(text.as_bytes(), &settings!(spec, limit));
        match json_oracle::fit(text, spec, limit) {
            Ok(expected) => {
                let fitted = fitted.map_err(|unfit| {
                    TestCaseError::fail(format!("limit {limit}: {unfit:?} instead of {expected}"))
                })?;
                let found = str::from_utf8(fitted.bytes()).unwrap();
                prop_assert_eq!(found, &*expected, "limit {}", limit);
                prop_assert!(limit == text.len() as u64 || is_valid(fitted.bytes()));
                prop_assert_eq!(fitted.report().len(), fitted.bytes().len() as u64);
            }
            Err(reasons) => {
                let unfit = fitted.map(|fitted| fitted.into_bytes());
                let unfit = unfit.map_err(|unfit| unfit.reason());
                let reason =
                    unfit.map_or_else(|reason| format!("{reason:?}"), |text| format!("{text:?}"));
                prop_assert!(
                    reasons.contains(&&*reason),
                    "limit {}: {} and not {:?}",
                    limit,
                    reason,
                    reasons
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_limit_the_outcome_is_that_of_the_oracle((text, spec) in json_cases::case()) {
        check(&text, &spec)?;
    }
}

/// What comes up too seldom at random.
#[test]
#[cfg_attr(miri, ignore = "takes many minutes")]
fn rare_shapes_come_out_as_the_oracle_has_them() {
    let path = |tokens: &[&str]| {
        tokens
            .iter()
            .map(|&token| token.to_owned())
            .collect::<Vec<_>>()
    };
    let plain = |cut| Spec {
        cut,
        copies: Vec::new(),
        place: Place::Default,
        note: None,
        total: false,
        offset: None,
        offset_at: None,
    };
    let arrays = [
        // The largest comes first, in between, in objects, twice, and in an array, where it is not looked for.
        r#"{"a":[1],"b":{"c":[1,2],"d":{"e":[1,2,3],"f":[0]},"g":[1,2]},"h":[5,6,7,"~"],"i":{"j":1}}"#,
        r#"{"a":{"b":{"c":[12345,"~"]},"d":[12]},"e":[[1,2,3,4,5,6,7,8,9]],"f":"abc"}"#,
        r#"{"a":[12,34],"b":[56,78],"c":{"d":[9,0],"truncated":0},"e":[10,[11,[12]],{"k":[13]}]}"#,
        // A comma is not always between items.
        r#"{"a":["a,[\"",[1,[2,{"k":",]"}]],{"x":[1,2]},"\\\\",{"y":{"z":[]}},"\\\",]"],"z":[1]}"#,
        r#"[1,[2,3],{"a":[4,5]},"6,7"]"#,
    ];
    // Members that are marked already, and places that are found late, among others.
    let arrays = arrays.into_iter().chain([
        r#"{"c":{"truncated":0,"k":{},"a":[1,22,333,"~"]},"a":[1,2],"b":{}}"#,
        r#"{"b":{"truncated":1,"x":{"y":2}},"a":[1,22,333,"~"]}"#,
        r#"{"b":{"x":{"truncated":2}},"a":[1,22,333,"~"]}"#,
        r#"{"b":{},"c":{"truncated":1,"z":1},"a":[1,22,333,"~"]}"#,
        r#"{"truncated":1,"k":{},"a":[1,22,333,"~"],"b":[]}"#,
        r#"{"a":[1,22,333,"~"],"a rather long name":{"k":1}}"#,
        r#"{"a":[12,34,"~"],"b":[56,78,"~"]}"#,
        r#"{"a":[12,34],"b":[56,78,"~"]}"#,
    ]);
    for text in arrays {
        // What makes room for the markers where it is left out.
        let text = &text.replace('~', &"x".repeat(64));
        let only = if text.starts_with('[') {
            vec![]
        } else {
            vec!["a"]
        };
        for cut in [Cut::Largest(path(&[])), Cut::Array(path(&only))] {
            let at = [["b"].as_slice(), &["b", "new"], &["a rather long name"]];
            let places = at.map(|tokens| Place::At(path(tokens)));
            let places = places.into_iter().filter(|_| text.contains("xx"));
            for place in places.chain([Place::Default, Place::Headers]) {
                let copies = text
                    .contains(r#""f":"abc""#)
                    .then(|| (path(&["f"]), path(&[])));
                let spec = Spec {
                    place,
                    copies: copies.into_iter().collect(),
                    ..plain(cut.clone())
                };
                check(text, &spec).unwrap();
            }
        }
    }
    // Copies before, between and after the arrays.
    let text = r#"{"s":"a copy","d":{"a":[1,22,333],"t":"it, too","b":[4444,55555,666666],"u":"this"},"v":"and that"}"#;
    let copies = [["s"].as_slice(), &["d", "t"], &["d", "u"], &["v"]];
    for cut in [
        Cut::Largest(path(&[])),
        Cut::Array(path(&["d", "b"])),
        Cut::String(path(&["v"])),
    ] {
        for count in 1..=copies.len() {
            let copies = copies[..count].iter().map(|copy| (path(copy), path(&[])));
            let spec = Spec {
                copies: copies.collect(),
                ..plain(cut.clone())
            };
            check(text, &spec).unwrap();
        }
    }
    for text in [
        r#"{"s":"~","v":"and that","w":1}"#,
        r#"{"v":"and that","w":1,"s":"~"}"#,
    ] {
        let text = text.replace('~', &"x".repeat(64));
        let copies = vec![(path(&["s"]), path(&[]))];
        let spec = Spec {
            copies,
            ..plain(Cut::String(path(&["v"])))
        };
        check(&text, &spec).unwrap();
    }
    // Characters of one byte to twelve, and what looks like one.
    let strings = [
        r#"{"s":"aé€😀\u00e9\ud83d\ude00\n\\\"","t":12345}"#,
        r#"{"s":"\ud83d\u0041\ud83d\\ude00\ude00\ud83d\ud83d\ude00","t":[1]}"#,
        r#"{"s":"\\u0041\\\u0041\\\\\ud83d\ude00\\","t":0}"#,
        r#"{"s":"😀😀😀\ud83d\ude00\ud83d\ude00€€\u20ac\u20ac\\\\"}"#,
    ];
    for text in strings {
        let note = Some("{kept}+{dropped}".to_owned());
        for (note, offset) in [
            (None, None),
            (Some(String::new()), Some(8)),
            (note, Some(97)),
        ] {
            let spec = Spec {
                note,
                offset,
                ..plain(Cut::String(path(&["s"])))
            };
            check(text, &spec).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_documents_are_taken_for_what_they_are(
        (_, text) in json_cases::written(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..4),
    ) {
        let mut text = text.replace('\u{feff}', "").into_bytes();
        for (at, bytes) in damage {
            text.push(b' ');
            let at = at.index(text.len());
            text.splice(at..=at, bytes);
        }
        let valid = is_valid(&text) && str::from_utf8(&text).is_ok();
        prop_assert_eq!(scanned(&text).is_ok(), valid, "{}", text.escape_ascii());
    }

    #[test]
    fn whatever_comes_out_is_valid_and_within_the_limit(
        (text, spec) in json_cases::case(),
        limit in any::<prop::sample::Index>(),
        damage in prop::option::of((any::<prop::sample::Index>(), damage())),
    ) {
        let mut text = text.into_bytes();
        if let Some((at, bytes)) = damage {
            let at = at.index(text.len());
            text.splice(at..=at, bytes);
        }
        let limit = limit.index(text.len().max(1)) as u64;
        if let Ok(fitted) = fit(&text, &settings!(spec, limit)) {
            prop_assert!(text.is_empty() || is_valid(fitted.bytes()), "{}", fitted.bytes().escape_ascii());
            prop_assert!(str::from_utf8(fitted.bytes()).is_ok());
            prop_assert!(fitted.bytes().len() as u64 <= limit);
        }
    }
}

/// What comes in the place of a byte.
fn damage() -> impl Strategy<Value = Vec<u8>> {
    let bytes =
        prop::sample::select(b"\"\\[]{}:,0-+.eE1utfnx \n\x00\x1f\x7f\x80\xc3\xff".as_slice());
    prop::collection::vec(prop_oneof![3 => bytes, 1 => any::<u8>()], 0..3)
}

fn fitted(text: impl AsRef<[u8]>, settings: &Fit) -> String {
    let fitted = fit(text.as_ref(), settings).unwrap();
    assert!(fitted.bytes().len() as u64 <= fitted.report().limit());
    assert!(is_valid(fitted.bytes()));
    String::from_utf8(fitted.into_bytes().to_vec()).unwrap()
}

fn unfit(text: impl AsRef<[u8]>, settings: &Fit) -> Unfit {
    fit(text.as_ref(), settings).unwrap_err()
}

fn reason(text: impl AsRef<[u8]>, settings: &Fit) -> UnfitReason {
    unfit(text, settings).reason()
}

/// A document of so many items, each of ten bytes and a comma.
fn rows(count: usize) -> String {
    let rows: Vec<_> = (0..count).map(|row| format!(r#""row {row:4}""#)).collect();
    format!(r#"{{"rows":[{}]}}"#, rows.join(","))
}

/// What scanning a document comes to, when it is scanned and kept.
fn scanned(text: impl AsRef<[u8]>) -> Result<String, UnfitReason> {
    // The blanks put it over the limit, and are what is given up.
    let text = [b" ", text.as_ref()].concat();
    let settings = Fit::compact(text.len() as u64 - 1);
    fit(&text, &settings)
        .map(|fitted| String::from_utf8_lossy(fitted.bytes()).into_owned())
        .map_err(|unfit| unfit.reason())
}

#[test]
fn valid_documents_are_kept_as_they_are_written() {
    for valid in [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "-0.0e-0",
        "1",
        "1e400",
        "1E+2",
        "-1.5e-10",
        "123456789012345678901234567890",
        "0.1",
        r#""""#,
        r#""\u0000""#,
        r#""\uD834\uDd1e""#,
        r#""\ud800""#,
        r#""\udc00\ud800""#,
        r#""\"\\\/\b\f\n\r\t""#,
        "\"\u{7f}\u{2028}\u{10ffff}\"",
        "[]",
        "{}",
        "[[]]",
        "[{}]",
        r#"{"":0}"#,
        r#"{"a":1,"a":2}"#,
        "[1,2]",
        r#"{"a":{"b":[null]}}"#,
        r#"["\\"]"#,
        r#"["\\\""]"#,
        r#"{"\u0000\\":[]}"#,
    ] {
        assert_eq!(scanned(valid).as_deref(), Ok(valid));
        assert!(is_valid(valid.as_bytes()), "{valid}");
        // With whitespace wherever it may be, and only there.
        let spaced = format!("\n\t{valid} \r\n");
        assert_eq!(scanned(spaced).as_deref(), Ok(valid));
    }
    assert_eq!(
        scanned("[ 1 , \"a b\" ,\n{ \"k\" :\t1 } ]").as_deref(),
        Ok(r#"[1,"a b",{"k":1}]"#)
    );
    assert_eq!(scanned("\t").as_deref(), Err(&UnfitReason::Malformed));
}

#[test]
fn invalid_documents_are_reported_and_never_mended() {
    let invalid: &[&[u8]] = &[
        b"",
        b"   ",
        b"nul",
        b"nulll",
        b"nullx",
        b"True",
        b"tru ",
        b"NaN",
        b"Infinity",
        b"-",
        b"-x",
        b"+1",
        b"01",
        b"-01",
        b"00",
        b"1.",
        b".5",
        b"1.e1",
        b"1e",
        b"1e+",
        b"1e+x",
        b"1.5.5",
        b"1ee1",
        b"0x1",
        b"1 000",
        b"\"",
        b"\"a",
        b"\"\\",
        b"\"\\\"",
        b"\"\\x\"",
        b"\"\\u12\"",
        b"\"\\u123g\"",
        b"\"\\U1234\"",
        b"'a'",
        b"[",
        b"]",
        b"[1",
        b"[1,",
        b"[1,]",
        b"[,1]",
        b"[1,,2]",
        b"[1 2]",
        b"[1}",
        b"{",
        b"}",
        b"{\"a\"",
        b"{\"a\":",
        b"{\"a\":1",
        b"{\"a\":1,",
        b"{\"a\":1,}",
        b"{,}",
        b"{a:1}",
        b"{1:1}",
        b"{\"a\" 1}",
        b"{\"a\"::1}",
        b"{\"a\":1 \"b\":2}",
        b"{\"a\":1]",
        b"[\"a\":1]",
        b"{\"a\"}",
        b"[1]]",
        b"[1],",
        b"{}{}",
        b"1 2",
        b"null null",
        b"\"a\" \"b\"",
        b"[] //",
        b"/**/[]",
        b"[1]\0",
        b"\0",
        b"[\x0b]",
        b"[\xa0]",
        b"\"\x00\"",
        b"\"a\nb\"",
        b"\"\x1f\"",
        b"{\"\t\":1}",
        b"\"\xff\"",
        b"\"\xc3\"",
        b"\"\xed\xa0\x80\"",
        b"\"\xf4\x90\x80\x80\"",
        b"\"\xc0\x80\"",
        b"\"\xe2\x82\"",
        b"[\xff]",
        b"\xef\xbb",
        b"\xef\xbb\xbf",
        b"[\xef\xbb\xbf1]",
        b"\xfe\xff",
        b"\xef\xbb\xbf\xef\xbb\xbf1",
    ];
    for &text in invalid.iter().step_by(usually(1, 7)) {
        assert!(
            !is_valid(text) || str::from_utf8(text).is_err(),
            "{}",
            text.escape_ascii()
        );
        // The second one is kept within an array, whose end it must not reach.
        for around in [("", ""), ("[", "]"), ("{\"a\":[0,", "]}")] {
            let text = [around.0.as_bytes(), text, around.1.as_bytes()].concat();
            if is_valid(&text) && str::from_utf8(&text).is_ok() {
                continue;
            }
            let reason = scanned(&text).unwrap_err();
            assert!(
                matches!(reason, UnfitReason::Malformed | UnfitReason::TrailingData),
                "{}",
                text.escape_ascii()
            );
        }
    }
    for two in ["{}{}", "1 2", "[1]]", "null null", "[] //", "\"a\" \"b\""] {
        assert_eq!(scanned(two), Err(UnfitReason::TrailingData), "{two}");
    }
}

#[test]
fn what_is_left_out_has_to_be_json_too() {
    let settings = Fit::array_at(60, "/rows").markers_in_headers();
    let whole = rows(100);
    assert_eq!(fitted(&whole, &settings), rows(4));
    assert_eq!(
        reason(&whole[..whole.len() - 1], &settings),
        UnfitReason::Malformed
    );
    assert_eq!(
        reason(whole.replace("99\"", "99"), &settings),
        UnfitReason::Malformed
    );
    assert_eq!(
        reason(whole.replace("\"row   99\"", "01"), &settings),
        UnfitReason::Malformed
    );
    assert_eq!(
        reason(format!("{whole} x"), &settings),
        UnfitReason::TrailingData
    );
    // Only what goes out has to be text.
    let mut bytes = whole.into_bytes();
    let late = bytes.len() - 6;
    bytes[late] = 0xFF;
    assert_eq!(fitted(&bytes, &settings), rows(4));
    bytes[12] = 0xFF;
    assert_eq!(reason(&bytes, &settings), UnfitReason::Malformed);
}

#[test]
fn depth_is_bounded_and_takes_no_stack() {
    const DEEP: usize = usually(100_000, 1100);
    let nested = |depth: usize| format!("{}{} ", "[".repeat(depth), "]".repeat(depth));
    let limit = |depth: usize| Fit::compact(2 * depth as u64).max_depth(DEEP);
    assert_eq!(fitted(nested(DEEP), &limit(DEEP)).len(), 2 * DEEP);
    assert_eq!(
        reason(nested(DEEP + 1), &limit(DEEP + 1)),
        UnfitReason::TooDeep
    );
    assert_eq!(
        reason(nested(1025), &Fit::compact(2050)),
        UnfitReason::TooDeep
    );
    assert_eq!(fitted(nested(1024), &Fit::compact(2048)).len(), 2048);

    // Deep inside an item, and on the way to one.
    let item = format!(r#"{{"a":[1,{}]}}"#, nested(DEEP * 9 / 10).trim());
    assert_eq!(
        fitted(
            &item,
            &Fit::array_at(20, "/a").markers_in_headers().max_depth(DEEP)
        ),
        r#"{"a":[1]}"#
    );
    let deep = format!(
        "{}[1,2,3]{}",
        "{\"a\":".repeat(DEEP / 2),
        "}".repeat(DEEP / 2)
    );
    let settings = Fit::largest_array_in(deep.len() as u64 - 1, "")
        .markers_in_headers()
        .max_depth(DEEP);
    assert_eq!(fitted(&deep, &settings), deep.replace(",3", ""));
}

#[test]
fn a_byte_order_mark_is_taken_for_whitespace() {
    let text = "\u{feff}[1, 2]";
    assert_eq!(fitted(text, &Fit::compact(5)), "[1,2]");
    assert_eq!(
        fit(text.as_bytes(), &Fit::compact(9)).unwrap().bytes(),
        text
    );
    for start in [b"\xEF\xBB\xBE".as_slice(), b"\xEF\xBA\xBF", b"\xEF\xBB"] {
        let text = [start, b"[1, 2]"].concat();
        assert_eq!(reason(text, &Fit::compact(5)), UnfitReason::Malformed);
    }
}

#[test]
fn pointers_see_through_escapes_on_both_sides() {
    let text = r#"{"x":{"a/b~\u00e9\ud83d\ude00":[ 1,2 ]}}"#;
    let pointer = "/x/a~1b~0\u{e9}\u{1f600}";
    let settings = Fit::array_at(text.len() as u64 - 3, pointer).markers_in_headers();
    assert_eq!(fitted(text, &settings), text.replace("[ 1,2 ]", "[1]"));
    let text = r#"{"x":{"a\/b~\"\n\t\b\f\r\\\u00e9":[ 1,2 ]}}"#;
    let pointer = "/x/a~1b~0\"\n\t\u{8}\u{c}\r\\\u{e9}";
    let settings = Fit::array_at(text.len() as u64 - 3, pointer).markers_in_headers();
    assert_eq!(fitted(text, &settings), text.replace("[ 1,2 ]", "[1]"));
    // A lone surrogate is no character, and matches nothing.
    let settings = Fit::array_at(10, "/\u{fffd}");
    assert_eq!(
        reason(r#"{"\ud800":[1,2]}"#, &settings),
        UnfitReason::TooLarge
    );
}

#[test]
fn pointers_go_through_arrays_and_match_late() {
    let text = r#"{"b":[[1,2],{"r":[1]},{"r":[1,2,3]}],"r":[9]}"#;
    let at = |pointer| Fit::array_at(text.len() as u64 - 1, pointer).markers_in_headers();
    assert_eq!(fitted(text, &at("/b/2/r")), text.replace(",3]", "]"));
    assert_eq!(fitted(text, &at("/b/0")), text.replace("[1,2]", "[1]"));
    for stray in [
        "/b/02/r",
        "/b/-",
        "/b/+2/r",
        "/b/3",
        "/b/2/r/0",
        "/b/x",
        "",
        "/r/0/0",
        "/b/99999999999999999999",
    ] {
        assert_eq!(
            reason(
                text,
                &at(Pointer::from("")
                    .to_string()
                    .parse::<Pointer>()
                    .map(|_| stray)
                    .unwrap())
            ),
            UnfitReason::TooLarge,
            "{stray}"
        );
    }
    assert_eq!(reason(text, &at("/r")), UnfitReason::NothingKept);
}

#[test]
fn a_key_that_comes_twice_on_the_way_is_ambiguous() {
    let at = |text: &str| reason(text, &Fit::array_at(30, "/a/b"));
    let long = format!("[{}1]", "1,".repeat(30));
    assert_eq!(
        at(&format!(r#"{{"a":{{"b":{long}}},"a":{{"b":[]}}}}"#)),
        UnfitReason::Ambiguous
    );
    assert_eq!(
        at(&format!(r#"{{"a":{{"b":{long},"\u0062":1}}}}"#)),
        UnfitReason::Ambiguous
    );
    assert_eq!(
        at(&format!(r#"{{"a":1,"a":{{"b":{long}}}}}"#)),
        UnfitReason::Ambiguous
    );
    // Elsewhere it is nobody's business.
    let elsewhere = format!(r#"{{"a":{{"b":{long},"c":1,"c":2}}}}"#);
    let settings = Fit::array_at(30, "/a/b").markers_in_headers();
    assert_eq!(
        fitted(&elsewhere, &settings),
        r#"{"a":{"b":[1,1],"c":1,"c":2}}"#
    );
    // What fits without whitespace does not need the pointer.
    assert_eq!(
        fitted(r#"{"a":1, "a":2}"#, &Fit::array_at(13, "/a")),
        r#"{"a":1,"a":2}"#
    );
}

#[test]
fn what_comes_after_the_array_has_its_room() {
    let settings = |limit| Fit::array_at(limit, "/rows").markers_in_headers();
    let tail = "t".repeat(100);
    let text = format!(r#"{{"rows":[11,22,33,"]","\\\\\"",66],"tail":"{tail}"}}"#);
    let around = text.len() as u64 - r#"11,22,33,"]","\\\\\"",66"#.len() as u64;
    let kept = |more: u64| {
        let fitted = fitted(&text, &settings(around + more));
        fitted[9..fitted.find("],\"tail").unwrap()].to_owned()
    };
    assert_eq!(kept(23), r#"11,22,33,"]","\\\\\"""#);
    assert_eq!(kept(20), r#"11,22,33,"]""#);
    assert_eq!(kept(11), "11,22,33");
    assert_eq!(kept(7), "11,22");
    assert_eq!(kept(2), "11");
    assert_eq!(
        reason(&text, &settings(around + 1)),
        UnfitReason::NothingKept
    );
    assert_eq!(reason(&text, &settings(8)), UnfitReason::TooLarge);
}

#[test]
fn the_next_offset_may_grow_a_digit() {
    let text = rows(20);
    for kept in 1..=12 {
        let marks = format!(
            r#","truncated":true,"next_offset":{},"cap_reason":"size_limit"}}"#,
            7 + kept
        );
        let expected = rows(kept).strip_suffix('}').unwrap().to_owned() + &marks;
        let settings = Fit::array_at(expected.len() as u64, "/rows").offset(7);
        assert_eq!(fitted(&text, &settings), expected);
        let one_less = fit(text.as_bytes(), &settings.limit(expected.len() as u64 - 1));
        assert!(one_less.is_err() || one_less.unwrap().report().kept() == Some(kept as u64 - 1));
    }
    let over = Fit::array_at(150, "/rows").offset(u64::MAX - 19);
    assert_eq!(reason(&text, &over), UnfitReason::BadOffset);
    let last = Fit::array_at(150, "/rows").offset(u64::MAX - 20);
    assert!(fitted(&text, &last).contains(&(u64::MAX - 20 + 5).to_string()[..10]));
}

#[test]
fn the_offset_in_the_document_has_to_be_one() {
    let at = |offset: &str| {
        let text = rows(20).replace('}', &format!(r#","o":{offset}}}"#));
        let settings = Fit::array_at(150, "/rows").offset_at("/o");
        fit(text.as_bytes(), &settings).map(|fitted| fitted.report().next_offset().unwrap())
    };
    assert_eq!(at("40").unwrap() - at("0").unwrap(), 40);
    assert_eq!(at("null").unwrap(), at("0").unwrap());
    for bad in [
        "-1",
        "1.0",
        "1e3",
        "\"1\"",
        "true",
        "[]",
        "{}",
        "18446744073709551616",
    ] {
        assert_eq!(
            at(bad).unwrap_err().reason(),
            UnfitReason::BadOffset,
            "{bad}"
        );
    }
}

#[test]
fn a_marker_is_never_written_over() {
    let settings = Fit::array_at(130, "/rows");
    for taken in [
        r#""truncated":false"#,
        r#""next_offs\u0065t":1"#,
        r#""cap_reason":null"#,
    ] {
        let before = rows(20).replacen('{', &format!("{{{taken},"), 1);
        let after = rows(20).replace('}', &format!(",{taken}}}"));
        for text in [before, after] {
            assert_eq!(
                reason(&text, &settings),
                UnfitReason::MarkerTaken,
                "{taken}"
            );
            let elsewhere = settings.clone().markers_at("/_meta");
            assert!(fitted(&text, &elsewhere).contains(r#""_meta":{"truncated":true"#));
        }
    }
    // In another object it is none.
    let inside = rows(20).replace("\"row    1\"", r#"{"truncated":1}"#);
    assert!(fitted(inside, &settings).ends_with(r#""cap_reason":"size_limit"}"#));
    // Nor is one that is not written.
    let own = rows(20).replace('}', r#","total":20}"#);
    assert!(fitted(&own, &settings).contains(r#""total":20,"truncated":true"#));
    let total = settings.marker(Marker::Total, "total");
    assert_eq!(reason(&own, &total), UnfitReason::MarkerTaken);
}

#[test]
fn two_markers_have_two_names() {
    let twins = Fit::array_at(130, "/rows").marker(Marker::CapReason, "truncated");
    for settings in [twins.clone(), twins.clone().markers_at("/_meta")] {
        assert_eq!(reason(rows(20), &settings), UnfitReason::MarkerTaken);
    }
    // In headers, where case and underlines make no difference, neither.
    for name in ["truncated", "TRUNCATED"] {
        let twins = twins.clone().marker(Marker::CapReason, name);
        assert_eq!(
            reason(rows(20), &twins.markers_in_headers()),
            UnfitReason::MarkerTaken
        );
    }
    let twins_there = Fit::array_at(130, "/rows").marker(Marker::Total, "next-offset");
    assert!(fitted(rows(20), &twins_there).contains(r#""next-offset":20"#));
    assert_eq!(
        reason(rows(20), &twins_there.markers_in_headers()),
        UnfitReason::MarkerTaken
    );
    // The note is no header.
    let note = Fit::array_at(130, "/rows")
        .note("cut")
        .marker(Marker::Note, "truncated");
    assert!(fitted(rows(20), &note.markers_in_headers()).ends_with("]}"));
    // One that is left out has none.
    let none = twins.marker(Marker::Truncated, "");
    assert!(fitted(rows(20), &none).ends_with(r#""truncated":"size_limit"}"#));
}

#[test]
fn markers_need_an_object() {
    let top = "[1,2,3,4,5,6,7,8,9,10]";
    assert_eq!(reason(top, &Fit::array_at(10, "")), UnfitReason::NoPlace);
    assert_eq!(
        fitted(top, &Fit::array_at(10, "").markers_in_headers()),
        "[1,2,3,4]"
    );
    let nested = "{\"a\":[[1,2,3,4,5,6,7,8,9,0]],\"m\":[],\"n\":{}}";
    let at = Fit::array_at(nested.len() as u64 - 1, "/a/0");
    assert_eq!(reason(nested, &at), UnfitReason::NoPlace);
    assert_eq!(
        reason(nested, &at.clone().markers_at("/m")),
        UnfitReason::NoPlace
    );
    assert_eq!(
        reason(nested, &at.clone().markers_at("/x/y")),
        UnfitReason::NoPlace
    );
    let short = [Marker::NextOffset, Marker::CapReason];
    let at = short
        .into_iter()
        .fold(at, |at, marker| at.marker(marker, ""))
        .marker(Marker::Truncated, "t");
    assert_eq!(
        fitted(nested, &at.clone().markers_at("/n")),
        r#"{"a":[[1,2,3]],"m":[],"n":{"t":true}}"#.replace("1,2,3", "1,2,3,4,5")
    );
    assert_eq!(
        fitted(nested, &at.clone().markers_at("/n/k\"")),
        r#"{"a":[[1]],"m":[],"n":{"k\"":{"t":true}}}"#
    );
    assert_eq!(
        fitted(nested, &at.marker(Marker::Truncated, "")),
        nested.replace(",0", "")
    );
}

#[test]
fn copies_go_first_and_say_so() {
    let rows = rows(20);
    let copy = serde_json::to_string(&rows).unwrap();
    let text = format!(
        r#"{{"id":1,"result":{{"content":[{{"type":"text","text":{copy}}}],"structuredContent":{rows}}}}}"#
    );
    let settings = Fit::array_at(text.len() as u64 - 1, "/result/structuredContent/rows")
        .copy_at("/result/content/0/text", "/result/structuredContent")
        .markers_at("/result/_meta")
        .note("{kept} of {total} items; call again with offset {next_offset}");
    let report = |limit| fit(text.as_bytes(), &settings.clone().limit(limit)).unwrap();

    let only_copy = report(text.len() as u64 - 1);
    assert_eq!(
        (
            only_copy.report().copies_replaced(),
            only_copy.report().kept()
        ),
        (1, None)
    );
    let expected = text.replace(&copy, "\"Left out: the structured content says the same.\"");
    assert_eq!(only_copy.bytes(), &*expected);

    let cut = report(expected.len() as u64 - 1);
    assert_eq!(cut.report().copies_replaced(), 1);
    let kept = cut.report().kept().unwrap();
    let note = format!("\"text\":\"{kept} of 20 items; call again with offset {kept}\"");
    let cut = str::from_utf8(cut.bytes()).unwrap();
    assert!(cut.contains(&note) && cut.contains(&format!(r#""_meta":{{"truncated":true,"next_offset":{kept},"cap_reason":"size_limit","note":""#)), "{cut}");
    // A text that is the only one of its kind is never left out.
    let alone = format!(
        r#"{{"id":1,"result":{{"content":[{{"type":"text","text":{copy}}}],"structuredContent":null}}}}"#
    );
    assert_eq!(
        reason(&alone, &settings.clone().limit(150)),
        UnfitReason::TooLarge
    );
    // A copy that is itself far over the limit, before or after.
    let huge = format!(
        r#"{{"a":"{}","rows":[1,2,3],"b":"{}"}}"#,
        "x".repeat(usually(9000, 300)),
        "\\\"".repeat(usually(9000, 300))
    );
    let settings = Fit::array_at(200, "/rows")
        .copy_at("/a", "/rows")
        .copy_at("/b", "/rows");
    assert_eq!(fitted(&huge, &settings).matches("Left out").count(), 2);
    let both = fit(huge.as_bytes(), &settings).unwrap();
    assert_eq!(both.report().copies_replaced(), 2);
    let none = fit(b"[ 1 ]", &Fit::compact(3)).unwrap();
    assert_eq!(none.report().copies_replaced(), 0);
}

#[test]
fn many_copies_go_at_once_whatever_their_lengths() {
    const LENGTHS: [usize; 10] = [
        0,
        1,
        16_370,
        16_382,
        16_383,
        16_384,
        3,
        usually(50_000, 4),
        2,
        usually(40_000, 5),
    ];
    let texts = |text: &dyn Fn(usize) -> String| {
        let texts: Vec<_> = LENGTHS.iter().map(|&len| text(len)).collect();
        texts.join(r#","kept","#)
    };
    let page = |texts: String| {
        let kept = "k".repeat(20_000);
        format!(r#"{{"a":[{texts}],"k":"{kept}","rows":["one","two"],"b":[{texts}],"z":0}}"#)
    };
    let whole = page(texts(&|len| format!("\"{}\"", "x".repeat(len))));
    let mut settings = Fit::array_at(whole.len() as u64 - 1, "/rows");
    for index in 0..LENGTHS.len() {
        let at = |part| format!("/{part}/{}", 2 * index).parse::<Pointer>().unwrap();
        settings = settings.copy_at(at("a"), "/rows").copy_at(at("b"), "/rows");
    }
    let note = "\"Left out: the structured content says the same.\"";
    assert_eq!(fitted(&whole, &settings), page(texts(&|_| note.into())));
}

#[test]
fn the_largest_array_is_the_one_whose_items_hold_most() {
    let largest =
        |text: &str, limit| fitted(text, &Fit::largest_array_in(limit, "").markers_in_headers());
    // Not the outer one with few items, and not one inside of another.
    let text = format!(
        r#"{{"a":[1,2],"b":{{"c":[{}0],"d":[[{}0]]}},"e":[3]}}"#,
        "7,".repeat(50),
        "8,".repeat(60)
    );
    assert_eq!(
        reason(&text, &Fit::largest_array_in(150, "").markers_in_headers()),
        UnfitReason::NothingKept
    );
    let text = text.replace("[[", "[").replace("]]", "]");
    let cut = largest(&text, 150);
    assert!(
        cut.starts_with(&text[..120]) && cut.ends_with(r#",8]},"e":[3]}"#),
        "{cut}"
    );
    // Whitespace does not count.
    let text = r#"{"a":[1,                               2],"b":[11,22,33]}"#;
    assert_eq!(largest(text, 25), r#"{"a":[1,2],"b":[11,22]}"#);
    // The first of two.
    assert_eq!(
        largest(r#"{"a":[1,2],"b":[3,4]}"#, 20),
        r#"{"a":[1],"b":[3,4]}"#
    );
    // A scope.
    let text = r#"{"a":[1,2,3,4,5,6,7,8],"b":{"c":[3,4]}}"#;
    let scoped = Fit::largest_array_in(38, "/b").markers_in_headers();
    assert_eq!(
        fitted(text, &scoped),
        r#"{"a":[1,2,3,4,5,6,7,8],"b":{"c":[3]}}"#
    );
    // K3: an envelope with a count.
    const ITEMS: usize = usually(1000, 100);
    let text = format!(
        r#"{{"results":[{}0],"total":1000}}"#,
        "123456789,".repeat(ITEMS - 1)
    );
    let cut = fit(text.as_bytes(), &Fit::largest_array_in(300, "")).unwrap();
    assert_eq!(
        (cut.report().total(), cut.bytes().len()),
        (Some(ITEMS as u64), 296)
    );
}

#[test]
fn a_string_is_cut_between_characters_with_a_note_inside() {
    let text = format!(
        r#"{{"a":"{}","b":1}}"#,
        r"żó\ud83d\ude00\u0041\n\\".repeat(20)
    );
    let settings = |limit| Fit::string_at(limit, "/a").note("…{kept}/{total}");
    for limit in (40..text.len() as u64).step_by(usually(1, 97)) {
        let cut = fitted(&text, &settings(limit));
        let value: serde_json::Value = serde_json::from_str(&cut).unwrap();
        assert!(value["a"].as_str().unwrap().contains("…"));
        assert!(
            cut.len() as u64 > limit - 14 || limit + 14 > text.len() as u64,
            "{limit}: {cut}"
        );
    }
    let plain = format!(r#""{}""#, "x".repeat(5000));
    assert_eq!(
        fitted(&plain, &Fit::string_at(40, "")),
        r#""xxxxxxxx [4992 of 5000 bytes left out]""#
    );
    let marked = Fit::string_at(90, "/a").markers_at("");
    assert!(
        fitted(&text, &marked)
            .ends_with(r#"bytes left out]","b":1,"truncated":true,"cap_reason":"size_limit"}"#)
    );
    assert_eq!(
        reason(&text, &Fit::string_at(40, "/a").note(&"n".repeat(60))),
        UnfitReason::NothingKept
    );
    assert_eq!(
        reason(&text, &Fit::string_at(40, "/b")),
        UnfitReason::TooLarge
    );
}

#[test]
fn a_string_is_cut_as_late_as_can_be() {
    // With nothing said about it, at the very end of the room.
    let pairs = format!("\"{}\"", r"\ud83d\ude00".repeat(20));
    for limit in (14..pairs.len() as u64).step_by(usually(1, 23)) {
        let kept = (limit as usize - 2) / 12;
        let expected = format!("\"{}\"", r"\ud83d\ude00".repeat(kept));
        assert_eq!(
            fitted(&pairs, &Fit::string_at(limit, "").note("")),
            expected
        );
    }
    // Where the numbers that are said lose a digit.
    let plain = format!("\"{}\"", "x".repeat(5000));
    for limit in (990..1030).step_by(usually(1, 7)) {
        let said = |kept: usize| kept.to_string().repeat(3);
        let fits = |kept: &usize| kept + said(*kept).len() + 2 <= limit;
        let kept = (1..1030).rfind(fits).unwrap();
        let expected = format!("\"{}{}\"", "x".repeat(kept), said(kept));
        let settings = Fit::string_at(limit as u64, "").note("{kept}{kept}{kept}");
        assert_eq!(fitted(&plain, &settings), expected);
    }
}

#[test]
fn a_refusal_says_which_message_it_was() {
    let id = |id: &str| {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#,
            "x".repeat(5000)
        );
        unfit(text, &Fit::compact(1000)).id().map(str::to_owned)
    };
    for kept in [
        "7",
        "-7",
        "1e3",
        "null",
        r#""a bc""#,
        r#""\u0000\"é""#,
        "12345678901234567890",
    ] {
        assert_eq!(id(kept).as_deref(), Some(kept));
    }
    for dropped in [
        "true",
        "[1]",
        "{}",
        "\"\n\"",
        &format!("\"{}\"", "x".repeat(255)),
    ] {
        assert_eq!(id(dropped), None, "{dropped}");
    }
    assert_eq!(id(&format!("\"{}\"", "x".repeat(254))).unwrap().len(), 256);
    // The rest of a message is read for it, if it is one.
    let late = format!(r#""result":"{}","\u0069d":7}}"#, "x".repeat(5000));
    assert_eq!(
        unfit(format!(r#"{{"jsonrpc":"2.0",{late}"#), &Fit::compact(100)).id(),
        Some("7")
    );
    assert_eq!(unfit(format!("{{{late}"), &Fit::compact(100)).id(), None);
    let nested = format!(r#"{{"jsonrpc":"2.0","params":{{"id":1}},{late}"#);
    assert_eq!(unfit(nested, &Fit::compact(100)).id(), Some("7"));
}

#[test]
fn a_refusal_says_why_in_words() {
    for (text, limit, why) in [
        ("[1,2]", 4, "what has to be kept of it is larger"),
        ("[1  ", 2, "it is malformed"),
        ("[1,2] 3", 5, "there is data after it"),
    ] {
        let words = format!("the JSON document does not fit into {limit} bytes: {why}");
        assert_eq!(unfit(text, &Fit::compact(limit)).to_string(), words);
    }
    let rows = rows(3);
    let settings = Fit::array_at(10, "/rows");
    for (settings, why) in [
        (settings.clone(), "no part of it that could be cut fits"),
        (settings.clone().max_depth(1), "it is nested too deeply"),
        (
            settings.max_scan(9),
            "it is larger than what may be read of it",
        ),
    ] {
        let words = unfit(&rows, &settings).to_string();
        assert!(words.ends_with(why), "{words}");
    }
}

/// Controls that have a short name are written by it.
#[test]
fn a_note_may_have_any_characters() {
    let settings = Fit::array_at(120, "/rows").note("\"\\\n\r\t\u{1}\u{1f} ");
    let text = fitted(rows(20), &settings);
    assert!(
        text.contains(r#""note":"\"\\\n\r\t\u0001\u001f ""#),
        "{text}"
    );
}

/// What is held is held in blocks, and a place may be in any of them.
#[test]
fn markers_find_their_place_in_a_large_document() {
    let pads = [0, 1000, 16 * 1024 - 20, 16 * 1024, 40_000];
    for before in pads.into_iter().step_by(usually(1, 3)) {
        let pad = "x".repeat(before);
        let text = |array: &str, markers: &str| {
            format!(
                r#"{{"p":"{pad}","meta":{{{markers}}},"q":"{pad}","rows":[{array}],"r":"{pad}"}}"#
            )
        };
        let array = format!("1,22,333,4444,{}", "5".repeat(100));
        let spaced = text(&array, "").replace(',', "          ,");
        let markers = r#""truncated":true,"next_offset":4,"cap_reason":"size_limit""#;
        let expected = text("1,22,333,4444", markers);
        let settings = Fit::array_at(expected.len() as u64, "/rows").markers_at("/meta");
        assert!(fitted(spaced, &settings) == expected, "{before}");
    }
}

/// What is held is held in blocks, and a character may begin in one and end in the next.
#[test]
fn a_character_may_stand_across_blocks() {
    for pad in (16 * 1024 - 12..16 * 1024).step_by(usually(1, 5)) {
        let pad = "x".repeat(pad);
        for (text, is_valid) in [
            ("😀é€x".as_bytes(), true),
            (b"\xF0\x9F\x98x", false),
            (b"\xC3\xA9\xE2\x82", false),
            (b"\x01\x01", false),
        ] {
            let text = [b"[\"", pad.as_bytes(), text, b"\"\n]"].concat();
            let compact = [&text[..text.len() - 2], b"]"].concat();
            let found = fit(&text, &Fit::compact(compact.len() as u64));
            let found = found.map(|fitted| fitted.into_bytes() == compact);
            let expected = is_valid.then_some(true).ok_or(UnfitReason::Malformed);
            assert_eq!(found.map_err(|unfit| unfit.reason()), expected);
        }
    }
}

#[test]
fn no_more_is_read_than_may_be() {
    let text = rows(usually(1000, 100));
    let settings = Fit::array_at(100, "/rows").max_scan(usually(5000, 500));
    let unfit = unfit(&text, &settings);
    assert_eq!(
        (unfit.reason(), unfit.actual(), unfit.actual_is_exact()),
        (UnfitReason::ScanLimit, text.len() as u64, true)
    );
    assert!(fit(text.as_bytes(), &settings.max_scan(text.len() as u64)).is_ok());
}

#[test]
fn zero_fits_nothing() {
    assert_eq!(reason("1", &Fit::compact(0)), UnfitReason::TooLarge);
    assert_eq!(
        reason("[1,2]", &Fit::array_at(0, "")),
        UnfitReason::TooLarge
    );
    assert_eq!(fit(b"", &Fit::compact(0)).unwrap().bytes(), "");
    assert_eq!(
        reason("[1,2]", &Fit::array_at(2, "").markers_in_headers()),
        UnfitReason::NothingKept
    );
    assert_eq!(
        fitted("[1,2]", &Fit::array_at(3, "").markers_in_headers()),
        "[1]"
    );
}

#[test]
fn a_pointer_is_one_or_an_error() {
    for text in ["", "/", "/a", "/a~0b/~1", "//", "/\u{e9}\"\\"] {
        assert_eq!(text.parse::<Pointer>().unwrap().to_string(), text);
    }
    for text in ["a", "#/a", "/~", "/~2", "/a~"] {
        assert_eq!(
            text.parse::<Pointer>().unwrap_err().to_string(),
            format!("not a JSON Pointer: {text:?}")
        );
    }
}
