use std::{error::Error as StdError, fmt, fmt::Write};

use bytes::Bytes;

/// A document that fits: what [`fit`](super::fit) returns.
///
/// # Examples
///
/// ```
/// use tower_body_limit::json::{Fit, fit};
///
/// let fitted = fit(br#"["a", "b", "c"]"#, &Fit::array_at(9, "").markers_in_headers()).unwrap();
/// assert_eq!(fitted.bytes(), r#"["a","b"]"#);
/// assert_eq!(fitted.report().dropped(), Some(1));
/// ```
#[derive(Clone, Debug)]
pub struct Fitted {
    pub(super) report: FitReport,
    pub(super) data: Bytes,
}

impl Fitted {
    /// The document.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The document.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.data
    }

    /// What was done to it.
    #[must_use]
    pub fn report(&self) -> &FitReport {
        &self.report
    }
}

/// What was done to a document so that it fits.
///
/// In the extensions of each response that a [`JsonFitLayer`](super::JsonFitLayer) has changed.
///
/// | | unchanged | compacted | copies replaced | cut |
/// |---|---|---|---|---|
/// | [`original`](Self::original), [`len`](Self::len) | the same | less | less | less |
/// | [`copies_replaced`](Self::copies_replaced) | 0 | 0 | at least 1 | any |
/// | [`kept`](Self::kept), [`total`](Self::total), [`dropped`](Self::dropped) | `None` | `None` | `None` | some |
/// | [`next_offset`](Self::next_offset) | `None` | `None` | `None` | some, for an array |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitReport {
    pub(super) limit: u64,
    pub(super) original: u64,
    pub(super) len: u64,
    pub(super) copies: usize,
    pub(super) cut: Option<CutReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutReport {
    pub(super) kept: u64,
    pub(super) total: u64,
    pub(super) next_offset: Option<u64>,
}

impl FitReport {
    pub(super) fn unchanged(limit: u64, original: u64) -> Self {
        Self {
            limit,
            original,
            len: original,
            copies: 0,
            cut: None,
        }
    }

    /// The limit, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How many bytes the document had.
    #[must_use]
    pub fn original(&self) -> u64 {
        self.original
    }

    /// How many bytes it has now, at most [`limit`](Self::limit).
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no JSON document is empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// How many [copies](super::Fit::copy_at) were replaced by a note.
    #[must_use]
    pub fn copies_replaced(&self) -> usize {
        self.copies
    }

    /// How many items of the array are left, or how many bytes of the string; `None` if nothing was
    /// left out.
    #[must_use]
    pub fn kept(&self) -> Option<u64> {
        self.cut.map(|cut| cut.kept)
    }

    /// How many items the array had, or how many bytes the string.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        self.cut.map(|cut| cut.total)
    }

    /// How many items, or bytes, were left out.
    #[must_use]
    pub fn dropped(&self) -> Option<u64> {
        self.cut.map(|cut| cut.total.saturating_sub(cut.kept))
    }

    /// The offset of the first item that was left out.
    #[must_use]
    pub fn next_offset(&self) -> Option<u64> {
        self.cut.and_then(|cut| cut.next_offset)
    }
}

/// A document that cannot be made to fit.
///
/// | method | says |
/// |---|---|
/// | [`reason`](Self::reason) | why |
/// | [`limit`](Self::limit) | what was configured, in bytes |
/// | [`actual`](Self::actual) | how large the document is, or how far it was read |
/// | [`id`](Self::id) | which message it was, if it has an `id` |
///
/// # Examples
///
/// ```
/// use tower_body_limit::json::{Fit, UnfitReason, fit};
///
/// let blob = format!(r#"{{"jsonrpc":"2.0","id":"a-1","result":"{}"}}"#, "x".repeat(1000));
/// let unfit = fit(blob.as_bytes(), &Fit::compact(100)).unwrap_err();
/// assert_eq!(unfit.reason(), UnfitReason::TooLarge);
/// assert_eq!((unfit.limit(), unfit.actual(), unfit.id()), (100, 1040, Some(r#""a-1""#)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub(super) reason: UnfitReason,
    pub(super) limit: u64,
    pub(super) actual: u64,
    pub(super) exact: bool,
    pub(super) id: Option<Box<str>>,
}

/// Why a document cannot be made to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnfitReason {
    /// What has to be kept is over the limit, or there is no array and no string at the pointer.
    TooLarge,
    /// Not even one item of the array, or one character of the string, fits beside what has to be
    /// kept.
    NothingKept,
    /// There is no object for the markers.
    NoPlace,
    /// A marker's name is already taken where it should go, by a member or by another marker.
    MarkerTaken,
    /// A key on the way to a pointer comes twice in one object.
    Ambiguous,
    /// The offset in the document is no natural number, or the next one is over `u64::MAX`.
    BadOffset,
    /// It is not JSON, or ends too early.
    Malformed,
    /// There is something after it.
    TrailingData,
    /// Its brackets are nested deeper than [`max_depth`](super::Fit::max_depth).
    TooDeep,
    /// It is larger than what may be [read](super::Fit::max_scan) of it.
    ScanLimit,
}

impl Unfit {
    /// Why.
    #[must_use]
    pub fn reason(&self) -> UnfitReason {
        self.reason
    }

    /// The limit, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How many bytes the document has, at least.
    ///
    /// Where that is neither declared nor was read to the end, the number of bytes after which it was
    /// settled that it does not fit.
    #[must_use]
    pub fn actual(&self) -> u64 {
        self.actual
    }

    /// Whether [`actual`](Self::actual) is the size of the document and not just a lower bound.
    #[must_use]
    pub fn actual_is_exact(&self) -> bool {
        self.exact
    }

    /// The member `id` of the object that the document is, as it is written there: a string in its
    /// quotes, a number, or `null`.
    ///
    /// `None` if there is none, or none that was read, or if it has more than 256 bytes. The rest of a
    /// JSON-RPC message is read for it.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Whether the document was not JSON in the first place.
    fn is_malformed(&self) -> bool {
        matches!(
            self.reason,
            UnfitReason::Malformed | UnfitReason::TrailingData
        )
    }

    pub(crate) fn sentence(&self) -> &'static str {
        if self.is_malformed() {
            "The response is larger than its limit, and is not valid JSON."
        } else {
            "The response is too large."
        }
    }

    /// The message of [`rpc_error`].
    pub(crate) fn rpc_message(&self) -> String {
        let reason = if self.is_malformed() {
            "response_malformed"
        } else {
            "response_too_large"
        };
        let (id, sentence) = (self.id().unwrap_or("null"), self.sentence());
        let (limit, actual) = (self.limit, self.actual);
        let mut text = String::with_capacity(256 + id.len());
        // Writing to a string does not fail.
        let _ = write!(
            text,
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"{sentence}","data":{{"reason":"{reason}","limit_bytes":{limit},"actual_bytes":{actual}}}}}}}"#
        );
        text
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            UnfitReason::TooLarge => "what has to be kept of it is larger",
            UnfitReason::NothingKept => "no part of it that could be cut fits",
            UnfitReason::NoPlace => "there is no object for its markers",
            UnfitReason::MarkerTaken => "the name of a marker is taken",
            UnfitReason::Ambiguous => "a key on the way to a pointer comes twice",
            UnfitReason::BadOffset => "its offset is not to be added to",
            UnfitReason::Malformed => "it is malformed",
            UnfitReason::TrailingData => "there is data after it",
            UnfitReason::TooDeep => "it is nested too deeply",
            UnfitReason::ScanLimit => "it is larger than what may be read of it",
        };
        let limit = self.limit;
        write!(
            f,
            "the JSON document does not fit into {limit} bytes: {reason}"
        )
    }
}

impl StdError for Unfit {}
