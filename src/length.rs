use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{ACCEPT_RANGES, CONTENT_LENGTH, ETAG},
};
use http_body::SizeHint;

/// The length that a message states before a byte of it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    /// Nothing, or nothing that can be believed.
    Nothing,
    AtLeast(u64),
    Exactly(u64),
    /// More bytes than a `u64` can count, hence more than any limit.
    Uncountable,
}

impl Declared {
    /// What a size hint states. Its upper bound is a maybe and states nothing.
    pub(crate) fn by_hint(hint: &SizeHint) -> Self {
        match (hint.exact(), hint.lower()) {
            (Some(bytes), _) => Self::Exactly(bytes),
            (None, 0) => Self::Nothing,
            (None, bytes) => Self::AtLeast(bytes),
        }
    }

    /// What a whole message states: the larger of its size hint and its `Content-Length`, so that
    /// a header can only tighten.
    pub(crate) fn by_message(hint: &SizeHint, headers: &HeaderMap) -> Self {
        let (hint, header) = (Self::by_hint(hint), Self::by_headers(headers));
        match (hint.bytes(), header.bytes()) {
            (_, None) => hint,
            (Some(hinted), Some(stated)) if hinted > stated => hint,
            _ => header,
        }
    }

    /// What `Content-Length` states, by the grammar of RFC 9110, section 8.6: digits alone. Several
    /// values, in a list or in several fields, have to agree.
    pub(crate) fn by_headers(headers: &HeaderMap) -> Self {
        let mut fields = headers.get_all(CONTENT_LENGTH).iter().peekable();
        let Some(first) = fields.next() else {
            return Self::Nothing;
        };
        // One field with one value, as almost always.
        if fields.peek().is_none() {
            match parse(first.as_bytes()) {
                Self::Nothing => {}
                number => return number,
            }
        }
        let mut values = values_of(first).chain(fields.flat_map(values_of));
        match values.next() {
            Some(first) if values.all(|value| value == first) => parse(first),
            _ => Self::Nothing,
        }
    }

    pub(crate) fn exceeds(self, limit: u64) -> bool {
        match self {
            Self::Nothing => false,
            Self::AtLeast(bytes) | Self::Exactly(bytes) => bytes > limit,
            Self::Uncountable => true,
        }
    }

    /// The number for an error message.
    pub(crate) fn bytes(self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::AtLeast(bytes) | Self::Exactly(bytes) => Some(bytes),
            Self::Uncountable => Some(u64::MAX),
        }
    }
}

/// Whether a message states how long it is, so that one that breaks off can be told from one that ends.
pub(crate) fn is_declared(hint: &SizeHint, headers: &HeaderMap) -> bool {
    hint.exact().is_some() || Declared::by_headers(headers) != Declared::Nothing
}

/// Whether a response has no body, so that its length is that of another one (RFC 9110, section
/// 6.4.1).
pub(crate) fn is_bodiless(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD
        || (*method == Method::CONNECT && status.is_success())
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Removes the headers, or trailers, that describe a body as it was before it was changed.
pub(crate) fn forget_the_whole(headers: &mut HeaderMap) {
    const DIGESTS: [HeaderName; 4] = [
        HeaderName::from_static("content-digest"),
        HeaderName::from_static("repr-digest"),
        HeaderName::from_static("digest"),
        HeaderName::from_static("content-md5"),
    ];
    for name in [CONTENT_LENGTH, ETAG, ACCEPT_RANGES].iter().chain(&DIGESTS) {
        headers.remove(name);
    }
}

/// The values of a field that may hold a list.
pub(crate) fn values_of(field: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    field
        .as_bytes()
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
}

fn parse(value: &[u8]) -> Declared {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Declared::Nothing;
    }
    let number = value.iter().try_fold(0_u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    });
    number.map_or(Declared::Uncountable, Declared::Exactly)
}
