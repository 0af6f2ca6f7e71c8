use std::{error::Error as StdError, fmt, io, sync::Arc};

use http::StatusCode;

/// An error of any type, as tower and http-body pass them around.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// What a limit was put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// The body of a request, limited by a [`RequestSizeLimitLayer`](crate::RequestSizeLimitLayer)
    /// or its client counterpart.
    Request,
    /// The body of a response, limited by a
    /// [`ResponseSizeLimitLayer`](crate::ResponseSizeLimitLayer).
    Response,
    /// One record of a stream: a server-sent event or a line. Limited by the layers and the body of
    /// the feature `records`.
    Record,
    /// A body that was limited by hand, with [`LimitedBody::new`](crate::LimitedBody::new) or
    /// [`BodyLimitExt`](crate::BodyLimitExt).
    Body,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request body",
            Self::Response => "response body",
            Self::Record => "record",
            Self::Body => "body",
        })
    }
}

/// A body was larger than its limit.
///
/// All sizes are bytes of body data: head, trailers and the framing of the transport are not
/// counted. A limit is inclusive, so a body of exactly [`limit()`](Self::limit) bytes never causes
/// this error.
///
/// | method | says |
/// |---|---|
/// | [`limit()`](Self::limit) | what was configured |
/// | [`declared()`](Self::declared) | what the message stated before a byte was read |
/// | [`read()`](Self::read) | what was counted until then, the frame that crossed included |
/// | [`read_is_total()`](Self::read_is_total) | whether that was all of it |
/// | [`record_offset()`](Self::record_offset) | where in the body the record starts, if it is one |
/// | [`subject()`](Self::subject) | request, response, record or body |
/// | [`status()`](Self::status) | the HTTP status that fits it |
/// | [`label()`](Self::label) | which layer, if that was given a label |
///
/// # Examples
///
/// ```
/// use tower_body_limit::{BodyLimitExt, TooLarge};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let error = String::from("eleven byte").collect_limited(10).await.unwrap_err();
///
/// // Whatever the error was wrapped in on its way up.
/// let error = std::io::Error::other(error);
/// let too_large = TooLarge::find(&error).unwrap();
/// assert_eq!(too_large.limit(), 10);
/// assert_eq!(too_large.declared(), Some(11));
/// assert_eq!(too_large.to_string(), "the body is larger than its limit of 10 bytes");
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "LengthLimitError")]
#[doc(alias = "PayloadTooLarge")]
#[doc(alias = "ContentTooLarge")]
pub struct TooLarge {
    pub(crate) limit: u64,
    pub(crate) declared: Option<u64>,
    pub(crate) read: u64,
    pub(crate) read_is_total: bool,
    pub(crate) record_offset: Option<u64>,
    pub(crate) subject: Subject,
    pub(crate) status: StatusCode,
    pub(crate) label: Option<&'static str>,
}

impl TooLarge {
    /// The limit, in bytes, that was exceeded.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The length, in bytes, that the message stated before any of it was read.
    ///
    /// `None` where it stated none. A stated length that no `u64` can hold is `u64::MAX`.
    #[must_use]
    pub fn declared(&self) -> Option<u64> {
        self.declared
    }

    /// How many bytes were read before the limit was known to be exceeded.
    ///
    /// The frame that crossed the limit is included, although its data was not passed on. The
    /// whole is at least this long; see [`read_is_total`](Self::read_is_total). Zero if the
    /// declared length alone settled it. Of a record, its bytes up to the one that was too many.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Whether [`read`](Self::read) is known to be the length of the whole.
    #[must_use]
    pub fn read_is_total(&self) -> bool {
        self.read_is_total
    }

    /// How many bytes of the body come before the record that is too large.
    ///
    /// `None` unless the [subject](Self::subject) is a record.
    #[must_use]
    pub fn record_offset(&self) -> Option<u64> {
        self.record_offset
    }

    /// What the limit was put on.
    #[must_use]
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// The status of an answer that reports this error.
    ///
    /// | limited | status |
    /// |---|---|
    /// | a request | 413 |
    /// | a response that a server was sending | 500, or 502 if it is a [gateway] |
    /// | a response that a client was reading | 502 |
    /// | a record of a request, of a response | 413, 502 |
    /// | a body or its records, by hand | 500 |
    ///
    /// [gateway]: crate::ResponseSizeLimitLayer::gateway
    #[must_use]
    #[doc(alias = "413")]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The label of the layer that set the limit, if it was given one.
    #[must_use]
    pub fn label(&self) -> Option<&'static str> {
        self.label
    }

    /// Finds a `TooLarge` anywhere in a chain of errors.
    ///
    /// Follows [`source()`](StdError::source) to any depth, and looks into [`io::Error`], `Arc` and
    /// `Box`, which hide the error they hold from `source()`. `None` if the failure had another
    /// cause, a disconnected peer for instance.
    ///
    /// Over HTTP/2, hyper drops the error of a request body that a client was sending, so there is
    /// nothing to be found in hyper's own error. A
    /// [`ClientRequestSizeLimitLayer`](crate::ClientRequestSizeLimitLayer) remembers it.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            next = held_by(error).or_else(|| error.source());
        }
        None
    }
}

/// The error that a wrapper holds but leaves out of its `source()`.
fn held_by<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    fn inside<'a, T: StdError + 'static>(
        error: &'a (dyn StdError + 'static),
    ) -> Option<&'a (dyn StdError + 'static)> {
        if let Some(held) = error.downcast_ref::<Arc<T>>() {
            return Some(&**held);
        }
        error.downcast_ref::<Box<T>>().map(|held| &**held as _)
    }

    if let Some(error) = error.downcast_ref::<io::Error>() {
        return error.get_ref().map(|held| held as _);
    }
    if let Some(held) = error.downcast_ref::<Arc<dyn StdError + Send + Sync>>() {
        return Some(&**held);
    }
    if let Some(held) = error.downcast_ref::<Arc<dyn StdError>>() {
        return Some(&**held);
    }
    inside::<TooLarge>(error).or_else(|| inside::<io::Error>(error))
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {}", self.subject)?;
        if let Some(offset) = self.record_offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, " is larger than its limit of {} bytes", self.limit)?;
        match self.label {
            Some(label) => write!(f, " ({label})"),
            None => Ok(()),
        }
    }
}

impl StdError for TooLarge {}

/// The error of every body and client of this crate.
///
/// It never stands for something else: what the wrapped body or service reports is
/// [`Body`](Self::Body) or [`Service`](Self::Service), unless there is a [`TooLarge`] somewhere in
/// its chain. That one is taken out, so that two limits, one inside the other, look like one.
///
/// # Examples
///
/// ```
/// use tower_body_limit::{BodyLimitExt, Error};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// // The limit inside fires; the one outside passes it on as it is.
/// let body = String::from("eleven byte").limited(10).limited(1000);
/// match body.collect_limited(2000).await.unwrap_err() {
///     Error::TooLarge(too_large) => assert_eq!(too_large.limit(), 10),
///     other => panic!("{other}"),
/// }
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A limit was exceeded.
    #[error("a size limit was exceeded")]
    TooLarge(#[source] TooLarge),
    /// The wrapped body failed for a reason of its own.
    #[error("the wrapped body failed")]
    Body(#[source] BoxError),
    /// The wrapped service failed for a reason of its own.
    #[error("the wrapped service failed")]
    Service(#[source] BoxError),
}

impl Error {
    /// The [`TooLarge`], if a limit was the cause.
    #[must_use]
    pub fn too_large(&self) -> Option<&TooLarge> {
        match self {
            Self::TooLarge(too_large) => Some(too_large),
            Self::Body(_) | Self::Service(_) => None,
        }
    }

    #[cold]
    pub(crate) fn from_body(error: impl Into<BoxError>) -> Self {
        Self::flattened(error.into()).unwrap_or_else(Self::Body)
    }

    #[cold]
    pub(crate) fn from_service(error: impl Into<BoxError>) -> Self {
        Self::flattened(error.into()).unwrap_or_else(Self::Service)
    }

    /// Our own error out of whatever it was wrapped in, or else what it was.
    fn flattened(error: BoxError) -> Result<Self, BoxError> {
        match TooLarge::find(&*error) {
            Some(too_large) => Ok(Self::TooLarge(too_large.clone())),
            None => error.downcast().map(|own| *own),
        }
    }
}

impl From<TooLarge> for Error {
    fn from(too_large: TooLarge) -> Self {
        Self::TooLarge(too_large)
    }
}
