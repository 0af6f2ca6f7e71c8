use std::{borrow::Cow, fmt::Write};

use super::{pointer::Pointer, template::Template};

/// The deepest that brackets may be nested.
const DEPTH: usize = 1024;
/// The most that is read of one document.
const SCAN: u64 = 64 * 1024 * 1024;

/// What stands in place of a copy that was left out although nothing else was.
const COPY: &str = "Left out: the structured content says the same.";
/// What a string ends in that was cut.
const CUT: &str = " [{dropped} of {total} bytes left out]";
/// The value of the marker [`Marker::CapReason`].
pub(super) const CAP_REASON: &str = "size_limit";

/// How a JSON document is made to fit into a number of bytes.
///
/// A document of at most `limit` bytes is left as it is, byte for byte. From a larger one the
/// insignificant whitespace is taken out; numbers, escapes, the order of members and duplicates stay as
/// they are written. If that is not enough, what happens depends on the constructor:
///
/// | constructor | gives up |
/// |---|---|
/// | [`compact`](Self::compact) | nothing more |
/// | [`array_at`](Self::array_at) | whole items off the end of one array |
/// | [`largest_array_in`](Self::largest_array_in) | the same, of the array that holds most bytes |
/// | [`string_at`](Self::string_at) | the end of one string |
///
/// Everything else is kept, [copies](Self::copy_at) of it aside. At least one item, or one character,
/// is kept, or a client that asks for page after page would never get on.
///
/// # Markers
///
/// A document that was cut says so, by members that are added at the end of an object:
///
/// | marker | default name | value |
/// |---|---|---|
/// | [`Truncated`](Marker::Truncated) | `truncated` | `true` |
/// | [`NextOffset`](Marker::NextOffset) | `next_offset` | the [offset](Self::offset) of the document plus the number of items kept |
/// | [`CapReason`](Marker::CapReason) | `cap_reason` | `"size_limit"` |
/// | [`Total`](Marker::Total) | none, so it is left out | the number of items there were |
/// | [`Note`](Marker::Note) | `note` | the [note](Self::note), if there is one |
///
/// They go to the object that holds the array, or [elsewhere](Self::markers_at), and count in the
/// limit as everything does. A string has no offset and no total of items, and no markers unless a place
/// for them is named.
///
/// # Cost
///
/// Time is linear in the document, however it is chunked. Memory is at most the limit, and one bit for
/// each level of depth; twice the limit for `largest_array_in`.
///
/// # Examples
///
/// ```
/// use tower_body_limit::json::{Fit, fit};
///
/// let rows = ["1".repeat(20), "2".repeat(20), "3".repeat(20), "4".repeat(20), "5".repeat(20)];
/// let page = format!(r#"{{"rows": [{}], "took": 3}}"#, rows.join(", "));
/// let bytes = |limit| fit(page.as_bytes(), &Fit::array_at(limit, "/rows")).unwrap().into_bytes();
///
/// let rows = rows.join(",");
/// assert_eq!(page.len(), 131);
/// assert_eq!(bytes(131), page);
/// assert_eq!(bytes(130), format!(r#"{{"rows":[{rows}],"took":3}}"#));
/// // Whole items, and never a part of one.
/// let cut = r#"{"rows":[11111111111111111111],"took":3,"truncated":true,"next_offset":1,"cap_reason":"size_limit"}"#;
/// assert_eq!(bytes(115), cut);
/// assert_eq!(bytes(cut.len() as u64), cut);
/// ```
#[derive(Clone, Debug)]
pub struct Fit {
    pub(super) limit: u64,
    pub(super) cut: Cut,
    pub(super) copies: Vec<Copy>,
    pub(super) copy_text: Template,
    pub(super) note: Option<Template>,
    pub(super) place: Option<Place>,
    pub(super) names: Names,
    pub(super) offset: Option<u64>,
    pub(super) offset_at: Option<Pointer>,
    pub(super) max_depth: usize,
    pub(super) max_scan: u64,
}

/// A string that says the same as another part of the document.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) at: Pointer,
    pub(super) of: Pointer,
}

/// What may be given up of a document.
#[derive(Clone, Debug)]
pub(super) enum Cut {
    Nothing,
    Array(Pointer),
    LargestArray(Pointer),
    String(Pointer),
}

/// Where the markers go.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Holder,
    At(Pointer),
    Headers,
}

/// One of the members that say what was done to a document: see [`Fit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Marker {
    /// That it was cut.
    Truncated,
    /// The offset to ask for next.
    NextOffset,
    /// Why it was cut.
    CapReason,
    /// How many items there were.
    Total,
    /// A note for a reader, a language model for instance.
    Note,
}

impl Fit {
    /// At most `limit` bytes, by leaving out insignificant whitespace.
    #[must_use]
    pub fn compact(limit: u64) -> Self {
        Self::new(limit, Cut::Nothing)
    }

    /// At most `limit` bytes, by leaving out whole items off the end of the array at `array`.
    #[must_use]
    pub fn array_at(limit: u64, array: impl Into<Pointer>) -> Self {
        Self::new(limit, Cut::Array(array.into()))
    }

    /// At most `limit` bytes, by leaving out whole items off the end of the largest array in the value
    /// at `scope`.
    ///
    /// The arrays that count are those that are reached from there through members of objects alone,
    /// so none that is an item of another one. The largest is the one whose items, without
    /// insignificant whitespace, are most bytes; of several the first. Needs up to twice `limit` bytes
    /// of memory, as which array that is shows only at the end.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::json::{Fit, fit};
    ///
    /// let answer = br#"{"query":["a","b"],"data":{"users":[{"id":1},{"id":2},{"id":3}]}}"#;
    /// let settings = Fit::largest_array_in(60, "").markers_in_headers();
    /// assert_eq!(
    ///     fit(answer, &settings).unwrap().bytes(),
    ///     r#"{"query":["a","b"],"data":{"users":[{"id":1},{"id":2}]}}"#
    /// );
    /// ```
    #[must_use]
    pub fn largest_array_in(limit: u64, scope: impl Into<Pointer>) -> Self {
        Self::new(limit, Cut::LargestArray(scope.into()))
    }

    /// At most `limit` bytes, by leaving out the end of the string at `string`.
    ///
    /// It then ends in a [note](Self::note), by default ` [2961 of 5000 bytes left out]`. Counted are
    /// bytes as the document has them, escapes included; no character is cut, and no escape.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::json::{Fit, fit};
    ///
    /// let log = format!(r#"{{"log":"{}","code":1}}"#, r"line\n".repeat(100));
    /// let settings = Fit::string_at(37, "/log").note("...");
    /// assert_eq!(fit(log.as_bytes(), &settings).unwrap().bytes(), r#"{"log":"line\nline\nlin...","code":1}"#);
    /// ```
    #[must_use]
    pub fn string_at(limit: u64, string: impl Into<Pointer>) -> Self {
        Self::new(limit, Cut::String(string.into()))
    }

    fn new(limit: u64, cut: Cut) -> Self {
        Self {
            limit,
            cut,
            copies: Vec::new(),
            copy_text: Template::new(COPY),
            note: None,
            place: None,
            names: Names::default(),
            offset: None,
            offset_at: None,
            max_depth: DEPTH,
            max_scan: SCAN,
        }
    }

    /// Names a string that says the same as the object or array at `original`.
    ///
    /// Once the whole cannot be kept it is replaced by the [note](Self::note), or by a sentence to that
    /// effect if there is none or nothing else is left out. If it turns out that there is no original, the document does
    /// not fit: nothing is left out that is not said elsewhere. To be called once for each.
    ///
    /// # Examples
    ///
    /// MCP servers write structured content twice, the first time as escaped text:
    ///
    /// ```
    /// use tower_body_limit::json::{Fit, fit};
    ///
    /// let result = r#"{"content":[{"type":"text","text":"{\"rows\":[\"one\",\"two\",\"three\"]}"}],"structuredContent":{"rows":["one","two","three"]}}"#;
    /// let settings = Fit::array_at(110, "/structuredContent/rows")
    ///     .copy_at("/content/0/text", "/structuredContent")
    ///     .markers_in_headers()
    ///     .note("{kept} of {total} rows, go on at {next_offset}");
    ///
    /// assert_eq!(
    ///     fit(result.as_bytes(), &settings).unwrap().bytes(),
    ///     r#"{"content":[{"type":"text","text":"2 of 3 rows, go on at 2"}],"structuredContent":{"rows":["one","two"]}}"#
    /// );
    /// ```
    #[must_use]
    pub fn copy_at(mut self, string: impl Into<Pointer>, original: impl Into<Pointer>) -> Self {
        self.copies.push(Copy {
            at: string.into(),
            of: original.into(),
        });
        self
    }

    /// What to say where something was left out.
    ///
    /// A template, in which `{kept}`, `{total}`, `{dropped}` and `{next_offset}` stand for numbers; of
    /// items, or of bytes for a string. It becomes the marker [`Marker::Note`], stands in place of each
    /// [copy](Self::copy_at), and ends a [string](Self::string_at) that was cut.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::json::{Fit, Marker, fit};
    ///
    /// let settings = Fit::array_at(60, "/rows")
    ///     .note("{dropped} of {total} left out, say \"go on\"")
    ///     .marker(Marker::Truncated, "")
    ///     .marker(Marker::NextOffset, "")
    ///     .marker(Marker::CapReason, "");
    /// let page = br#"{"rows":["one","two","three","four","five","six","seven","eight"]}"#;
    /// assert_eq!(
    ///     fit(page, &settings).unwrap().bytes(),
    ///     r#"{"rows":["one"],"note":"7 of 8 left out, say \"go on\""}"#
    /// );
    /// ```
    #[must_use]
    pub fn note(mut self, template: &str) -> Self {
        self.note = Some(Template::new(template));
        self
    }

    /// Puts the markers into the object at `place`.
    ///
    /// If it is not there, and what would hold it is an object, it is added to that.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::json::{Fit, fit};
    ///
    /// let settings = Fit::array_at(100, "/rows").markers_at("/_meta");
    /// let page = format!(r#"{{"rows":[{}0]}}"#, "12345,".repeat(100));
    /// assert_eq!(
    ///     fit(page.as_bytes(), &settings).unwrap().bytes(),
    ///     r#"{"rows":[12345,12345,12345],"_meta":{"truncated":true,"next_offset":3,"cap_reason":"size_limit"}}"#
    /// );
    /// ```
    #[must_use]
    pub fn markers_at(mut self, place: impl Into<Pointer>) -> Self {
        self.place = Some(Place::At(place.into()));
        self
    }

    /// Leaves the document without markers.
    ///
    /// A [`JsonFitLayer`](super::JsonFitLayer) puts them into the response's headers instead, each
    /// under its name with `x-` before it and `-` for `_`: `x-next-offset`. The note is not among them,
    /// nor is a marker whose name cannot be part of a header's.
    #[must_use]
    pub fn markers_in_headers(mut self) -> Self {
        self.place = Some(Place::Headers);
        self
    }

    /// Calls a marker `name`; an empty name leaves it out.
    ///
    /// A document that already has a member of that name in that place cannot be cut, nor can any if
    /// two of its markers have one name.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::json::{Fit, Marker, fit};
    ///
    /// let settings = Fit::array_at(45, "/rows")
    ///     .marker(Marker::NextOffset, "next")
    ///     .marker(Marker::Total, "total")
    ///     .marker(Marker::Truncated, "")
    ///     .marker(Marker::CapReason, "");
    /// let page = br#"{"rows":["one","two","three","four","five","six"]}"#;
    /// assert_eq!(
    ///     fit(page, &settings).unwrap().bytes(),
    ///     r#"{"rows":["one","two"],"next":2,"total":6}"#
    /// );
    /// ```
    #[must_use]
    pub fn marker(mut self, marker: Marker, name: &str) -> Self {
        self.names.set(marker, name);
        self
    }

    /// The offset of the first item of the document, 0 unless told.
    ///
    /// A [`JsonFitLayer`](super::JsonFitLayer) prefers a [`BaseOffset`](super::BaseOffset).
    #[must_use]
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Where in the document the offset of its first item is, if it is not otherwise told.
    ///
    /// If nothing or `null` is there it is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::json::{Fit, fit};
    ///
    /// let settings = Fit::array_at(100, "/rows").offset_at("/from");
    /// let page = format!(r#"{{"rows":[{}0],"from":40}}"#, "12345,".repeat(100));
    /// let report = fit(page.as_bytes(), &settings).unwrap().report().clone();
    /// assert_eq!((report.kept(), report.next_offset()), (Some(3), Some(43)));
    /// ```
    #[must_use]
    pub fn offset_at(mut self, number: impl Into<Pointer>) -> Self {
        self.offset_at = Some(number.into());
        self
    }

    /// The deepest that objects and arrays may be nested, 1,024 unless told.
    #[must_use]
    pub fn max_depth(mut self, depth: usize) -> Self {
        self.max_depth = depth;
        self
    }

    /// The most bytes that are read of a document that is over the limit, 64 MiB unless told.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::json::{Fit, UnfitReason, fit};
    ///
    /// let page = format!("[{}0]", "0,".repeat(1000));
    /// let settings = Fit::array_at(100, "").max_scan(2000);
    /// let unfit = fit(page.as_bytes(), &settings).unwrap_err();
    /// assert_eq!(unfit.reason(), UnfitReason::ScanLimit);
    /// ```
    #[must_use]
    pub fn max_scan(mut self, bytes: u64) -> Self {
        self.max_scan = bytes;
        self
    }

    /// Another limit, in bytes.
    #[must_use]
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Where markers go into the document, if they do.
    pub(super) fn place(&self) -> Option<&Place> {
        match (&self.place, &self.cut) {
            (Some(Place::Headers), _) | (None, Cut::String(_)) | (_, Cut::Nothing) => None,
            (None, _) => Some(&Place::Holder),
            (Some(place), _) => Some(place),
        }
    }

    pub(super) fn marks_headers(&self) -> bool {
        matches!(self.place, Some(Place::Headers))
    }

    /// The markers that a document gets.
    pub(super) fn markers(&self) -> impl Iterator<Item = (Marker, &str)> {
        let cuts_string = matches!(self.cut, Cut::String(_));
        self.names.iter().filter(move |(marker, _)| match marker {
            Marker::Truncated | Marker::CapReason => true,
            Marker::NextOffset | Marker::Total => !cuts_string,
            Marker::Note => !cuts_string && self.note.is_some() && !self.marks_headers(),
        })
    }

    /// What a marker is called where it goes.
    pub(super) fn full_name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        if self.marks_headers() {
            format!("x-{}", name.replace('_', "-").to_ascii_lowercase()).into()
        } else {
            name.into()
        }
    }

    /// Whether two markers of a document have one name.
    pub(super) fn has_twin_markers(&self) -> bool {
        let has_twin = |(marker, name)| {
            let mut markers = self.markers();
            markers.any(|(other, its_name)| {
                other != marker && self.full_name(its_name) == self.full_name(name)
            })
        };
        self.markers().any(has_twin)
    }

    /// What ends a string that was cut.
    pub(super) fn ending(&self) -> Template {
        self.note.clone().unwrap_or_else(|| Template::new(CUT))
    }

    /// The length of the longest key that is looked for.
    pub(super) fn longest_key(&self) -> usize {
        let cut = match &self.cut {
            Cut::Nothing => None,
            Cut::Array(pointer) | Cut::LargestArray(pointer) | Cut::String(pointer) => {
                Some(pointer)
            }
        };
        let place = match &self.place {
            Some(Place::At(pointer)) => Some(pointer),
            _ => None,
        };
        let pointers = cut.into_iter().chain(place).chain(&self.offset_at);
        let copies = self.copies.iter().flat_map(|copy| [&copy.at, &copy.of]);
        let tokens = pointers.chain(copies).flat_map(Pointer::tokens);
        let names = self.names.iter().map(|(_, name)| name.len());
        let longest = tokens.map(|token| token.len()).chain(names).max();
        longest.unwrap_or_default().max("jsonrpc".len())
    }
}

/// What the markers are called.
#[derive(Clone, Debug)]
pub(super) struct Names([(Marker, Box<str>); 5]);

impl Names {
    fn set(&mut self, marker: Marker, name: &str) {
        for (_, old) in self.0.iter_mut().filter(|(of, _)| *of == marker) {
            *old = name.into();
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Marker, &str)> {
        let all = self.0.iter().map(|(marker, name)| (*marker, &**name));
        all.filter(|(_, name)| !name.is_empty())
    }
}

impl Default for Names {
    fn default() -> Self {
        Self([
            (Marker::Truncated, "truncated".into()),
            (Marker::NextOffset, "next_offset".into()),
            (Marker::CapReason, "cap_reason".into()),
            (Marker::Total, "".into()),
            (Marker::Note, "note".into()),
        ])
    }
}

/// Writes `text` as the inside of a JSON string.
pub(super) fn escape(text: &str, to: &mut String) {
    for char in text.chars() {
        match char {
            '"' | '\\' => to.extend(['\\', char]),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            // Writing to a string does not fail.
            '\0'..' ' => drop(write!(to, "\\u{:04x}", u32::from(char))),
            _ => to.push(char),
        }
    }
}
