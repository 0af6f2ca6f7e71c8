//! A body in memory, and the ways to put a limit on it.

use std::{
    cell::Cell,
    convert::Infallible,
    fmt,
    future::ready,
    hint::black_box,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Empty, Limited};
use tower::{Layer, Service, service_fn};
use tower_body_limit::LimitedBody;
use tower_http::limit::RequestBodyLimitLayer;

/// Frames of one size, always ready, out of static memory: as little work as a body can be.
#[derive(Clone, Debug)]
pub struct Frames {
    frame: Bytes,
    left: u64,
    declared: bool,
}

impl Frames {
    pub fn new(frame: usize, count: u64) -> Self {
        let frame = Bytes::from_static(vec![b'x'; frame].leak());
        Self {
            frame,
            left: count,
            declared: true,
        }
    }

    pub fn undeclared(self) -> Self {
        Self {
            declared: false,
            ..self
        }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Poll::Ready(None);
        };
        self.left = left;
        Poll::Ready(Some(Ok(Frame::data(self.frame.clone()))))
    }

    fn is_end_stream(&self) -> bool {
        self.declared && self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        if self.declared {
            SizeHint::with_exact(self.left * self.frame.len() as u64)
        } else {
            SizeHint::new()
        }
    }
}

pub const BARE: &str = "bare";
pub const OURS: &str = "LimitedBody";
pub const LIMITED: &str = "Limited";
pub const TOWER_HTTP: &str = "tower-http";

pub const CONTENDERS: [&str; 4] = [BARE, OURS, LIMITED, TOWER_HTTP];

/// Where a body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// In code that knows its type.
    Direct,
    /// Behind a pointer, and so is the body under the limit: this is how axum does it.
    Boxed,
}

impl Reader {
    pub const ALL: [Self; 2] = [Self::Direct, Self::Boxed];

    /// Reads `body` to its end as one of the [`CONTENDERS`], and says how many frames there were.
    pub fn read_as(self, contender: &str, body: Frames) -> u64 {
        match self {
            Self::Direct => limit_as(contender, body, self),
            Self::Boxed => {
                let mut body = pin!(body);
                let body: Pin<&mut dyn Body<Data = Bytes, Error = Infallible>> = body.as_mut();
                limit_as(contender, black_box(body), self)
            }
        }
    }

    fn read<B: Body>(self, body: B) -> u64 {
        let mut body = pin!(body);
        match self {
            Self::Direct => read(body),
            Self::Boxed => {
                let body: Pin<&mut dyn Body<Data = B::Data, Error = B::Error>> = body.as_mut();
                read(black_box(body))
            }
        }
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Boxed => "boxed",
        })
    }
}

fn limit_as<B>(contender: &str, body: B, reader: Reader) -> u64
where
    B: Body<Data = Bytes, Error = Infallible>,
{
    const LIMIT: u64 = u64::MAX / 2;
    match contender {
        BARE => reader.read(body),
        OURS => reader.read(LimitedBody::new(body, LIMIT)),
        LIMITED => reader.read(Limited::new(body, LIMIT as usize)),
        TOWER_HTTP => {
            // Its layer alone can make its body.
            let frames = Cell::new(0);
            let service = service_fn(|request: Request<_>| {
                frames.set(reader.read(request.into_body()));
                ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())))
            });
            let layer = RequestBodyLimitLayer::new(LIMIT as usize);
            drop(layer.layer(service).call(Request::new(body)));
            frames.get()
        }
        unknown => panic!("no such contender: {unknown}"),
    }
}

/// Reads a body to its end, and says how many frames there were. It is always ready, but for the times
/// that it gives way to others.
pub fn read<B: Body>(body: B) -> u64 {
    let mut body = pin!(body);
    let mut cx = Context::from_waker(Waker::noop());
    let mut frames = 0;
    loop {
        let poll = body.as_mut().poll_frame(&mut cx);
        // By reference: to move a frame just written can cost more than all that is measured here.
        let Poll::Ready(Some(Ok(frame))) = &poll else {
            if poll.is_pending() {
                continue;
            }
            return frames;
        };
        black_box(frame.data_ref().map(Buf::remaining));
        frames += 1;
    }
}
