use std::{
    borrow::Cow,
    pin::Pin,
    str,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;
use pin_project_lite::pin_project;

use crate::{
    body::LimitedBody,
    error::{BoxError, Error},
    truncate::{TruncatedBody, Truncation},
    turns::Turns,
};

/// The most that is reserved on the word of the peer. Beyond it a buffer grows by what has come.
const RESERVE: u64 = 64 * 1024;

/// What stands for bytes that are not UTF-8.
const REPLACEMENT: &str = "\u{FFFD}";

/// Limits for bodies in hand, without a layer.
///
/// # Examples
///
/// ```
/// use tower_body_limit::BodyLimitExt;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let bytes = String::from("ten bytes.").collect_limited(10).await.unwrap().into_bytes();
/// assert_eq!(bytes, "ten bytes.");
///
/// let prefix = String::from("eleven byte").collect_prefix(10).await;
/// assert_eq!(prefix.text(), "eleven byt");
/// # }
/// ```
pub trait BodyLimitExt: Body + Sized {
    /// At most `limit` bytes, or an error: see [`LimitedBody`].
    fn limited(self, limit: u64) -> LimitedBody<Self> {
        LimitedBody::new(self, limit)
    }

    /// The first `limit` bytes: see [`TruncatedBody`].
    #[doc(alias = "take")]
    fn truncated(self, limit: u64) -> TruncatedBody<Self>
    where
        Self: Body<Data = Bytes>,
    {
        TruncatedBody::new(self, limit)
    }

    /// At most `limit` bytes in each record, or an error: see
    /// [`RecordLimitedBody`](crate::RecordLimitedBody).
    #[cfg(feature = "records")]
    #[cfg_attr(docsrs, doc(cfg(feature = "records")))]
    fn limit_records(self, kind: crate::RecordKind, limit: u64) -> crate::RecordLimitedBody<Self>
    where
        Self: Body<Data = Bytes>,
    {
        crate::RecordLimitedBody::new(self, kind, limit)
    }

    /// Reads the body to its end, into memory.
    ///
    /// A body of one frame is not copied. Others are gathered in one buffer, of which at most 64 KiB
    /// are reserved before the data is there, whatever is declared.
    ///
    /// # Errors
    ///
    /// As [`LimitedBody`]; what was read is dropped.
    #[doc(alias = "to_bytes")]
    fn collect_limited(self, limit: u64) -> CollectLimited<Self> {
        CollectLimited {
            body: LimitedBody::new(self, limit),
            data: Gathered::default(),
            trailers: None,
        }
    }

    /// Reads the first `limit` bytes of the body into memory and stops there.
    ///
    /// For diagnostics, so it does not fail: if the body does, what was read before is returned
    /// together with the error. Zero does not poll the body at all. Data is copied, so that a small
    /// prefix does not keep a large buffer alive.
    ///
    /// A peer that stalls before the limit is waited for; put a timeout around the *body* if what
    /// was read by then should be kept.
    fn collect_prefix(self, limit: u64) -> CollectPrefix<Self>
    where
        Self: Body<Data = Bytes>,
    {
        CollectPrefix {
            body: TruncatedBody::new(self, limit),
            data: BytesMut::new(),
            limit,
        }
    }
}

impl<B: Body> BodyLimitExt for B {}

/// A body that was read to its end within its limit.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl Collected {
    /// The data.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The data.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.data
    }

    /// The trailers, if there were any.
    #[must_use]
    pub fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }
}

/// The first bytes of a body.
#[derive(Debug)]
pub struct Prefix {
    data: Bytes,
    limit: u64,
    end: Truncation,
    error: Option<Error>,
}

impl Prefix {
    /// The data, at most as many bytes as asked for.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The data, at most as many bytes as asked for.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.data
    }

    /// Whether this is all of the body that was read.
    ///
    /// One that a [`TruncateLayer`](crate::TruncateLayer) has cut ends like a complete one; what was
    /// cut there its [`TruncationHandle`](crate::TruncationHandle) tells.
    #[must_use]
    pub fn end(&self) -> Truncation {
        self.end
    }

    /// What kept the rest of the body from being read, if the body failed.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// The data as text, at most as many bytes as asked for.
    ///
    /// A character that the limit has cut is left out. What is not UTF-8 becomes U+FFFD.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::BodyLimitExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Each of these characters takes two bytes.
    /// assert_eq!(String::from("жёж").collect_prefix(5).await.text(), "жё");
    /// # }
    /// ```
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        if let Ok(text) = str::from_utf8(&self.data) {
            return Cow::Borrowed(text);
        }
        let room = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let mut text = String::new();
        let mut chunks = self.data.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            let valid = chunk.valid();
            let fits = floor_char_boundary(valid, room - text.len());
            text.push_str(&valid[..fits]);
            let cut = self.end != Truncation::Complete
                && chunks.peek().is_none()
                && is_start_of_char(chunk.invalid());
            let replaced = !chunk.invalid().is_empty() && !cut;
            if fits < valid.len() || !replaced || room - text.len() < REPLACEMENT.len() {
                break;
            }
            text.push_str(REPLACEMENT);
        }
        Cow::Owned(text)
    }
}

/// The end of the last character of `text` that ends within `room` bytes.
fn floor_char_boundary(text: &str, room: usize) -> usize {
    let room = room.min(text.len());
    (0..=room)
        .rev()
        .find(|&end| text.is_char_boundary(end))
        .unwrap_or(0)
}

/// Whether more bytes could make a character of these.
fn is_start_of_char(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// One buffer for many frames, and the frame itself if there is only one.
#[derive(Debug, Default)]
struct Gathered {
    only: Bytes,
    many: BytesMut,
}

impl Gathered {
    fn push(&mut self, mut data: impl Buf, expected: u64) {
        if !data.has_remaining() {
            return;
        }
        if self.only.is_empty() && self.many.is_empty() {
            self.only = data.copy_to_bytes(data.remaining());
            return;
        }
        if !self.only.is_empty() {
            let only = std::mem::take(&mut self.only);
            self.many
                .reserve(only.len() + data.remaining() + expected.min(RESERVE) as usize);
            self.many.extend_from_slice(&only);
        }
        self.many.put(data);
    }

    fn into_bytes(self) -> Bytes {
        if self.many.is_empty() {
            self.only
        } else {
            self.many.freeze()
        }
    }
}

pin_project! {
    /// The future of [`BodyLimitExt::collect_limited`].
    #[derive(Debug)]
    pub struct CollectLimited<B> {
        #[pin]
        body: LimitedBody<B>,
        data: Gathered,
        trailers: Option<HeaderMap>,
    }
}

impl<B> Future for CollectLimited<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Output = Result<Collected, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut turns = Turns::default();
        loop {
            ready!(turns.poll(cx));
            let Some(frame) = ready!(this.body.as_mut().poll_frame(cx)?) else {
                let data = std::mem::take(this.data).into_bytes();
                return Poll::Ready(Ok(Collected {
                    data,
                    trailers: this.trailers.take(),
                }));
            };
            match frame.into_data() {
                Ok(data) => this.data.push(data, this.body.size_hint().lower()),
                Err(frame) => *this.trailers = frame.into_trailers().ok(),
            }
        }
    }
}

/// A buffer that is no larger than twice its data.
fn shrunk(data: BytesMut) -> Bytes {
    if data.len() < data.capacity() / 2 {
        return Bytes::copy_from_slice(&data);
    }
    data.freeze()
}

pin_project! {
    /// The future of [`BodyLimitExt::collect_prefix`].
    #[derive(Debug)]
    pub struct CollectPrefix<B> {
        #[pin]
        body: TruncatedBody<B>,
        data: BytesMut,
        limit: u64,
    }
}

impl<B> Future for CollectPrefix<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Output = Prefix;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Prefix> {
        let mut this = self.project();
        let mut turns = Turns::default();
        loop {
            ready!(turns.poll(cx));
            let error = match ready!(this.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        if this.data.is_empty() {
                            this.data.reserve((*this.limit).min(RESERVE) as usize);
                        }
                        this.data.extend_from_slice(data);
                    }
                    continue;
                }
                Some(Err(error)) => Some(error),
                None => None,
            };
            return Poll::Ready(Prefix {
                data: shrunk(std::mem::take(this.data)),
                limit: *this.limit,
                end: this.body.handle().get().unwrap_or(Truncation::Unknown),
                error,
            });
        }
    }
}
