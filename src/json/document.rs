use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::{
    engine::Engine,
    report::{FitReport, Unfit},
    settings::Fit,
};
use crate::{
    body::LimitedBody,
    error::{BoxError, Error},
    hold::Held,
    length::{Declared, forget_the_whole},
    turns::Turns,
};

/// How many bytes are scanned before other tasks of the thread have their turn.
pub(super) const TURN: usize = 256 * 1024;

/// A document on its way in.
#[derive(Debug)]
pub(super) struct Document {
    fit: Arc<Fit>,
    declared: Option<u64>,
    /// As it came, and not yet scanned.
    held: Held,
    chunk: Bytes,
    trailers: Option<HeaderMap>,
    // None while it is within its limit.
    engine: Option<Engine>,
}

/// How the reading of a document ended.
pub(super) enum End {
    Fits(Held),
    Changed(FitReport, Held),
    Unfit(Unfit),
    /// What there is to send before the error.
    Failed(Held, Error),
}

impl Document {
    pub(super) fn new(fit: Arc<Fit>, hint: &SizeHint, headers: &HeaderMap) -> Self {
        let stated = match Declared::by_headers(headers) {
            Declared::Exactly(bytes) => Some(bytes),
            _ => None,
        };
        Self {
            fit,
            declared: hint.exact().or(stated),
            held: Held::default(),
            chunk: Bytes::new(),
            trailers: None,
            engine: None,
        }
    }

    pub(super) fn poll_read<B>(
        &mut self,
        mut body: Pin<&mut LimitedBody<B>>,
        cx: &mut Context<'_>,
    ) -> Poll<End>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let (mut turns, mut budget) = (Turns::default(), TURN);
        loop {
            if let Err(unfit) = ready!(self.poll_scan(&mut budget, cx)) {
                return Poll::Ready(End::Unfit(unfit));
            }
            ready!(turns.poll(cx));
            match ready!(body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => self.push(frame),
                Some(Err(error)) => return Poll::Ready(self.failed(error)),
                None => return Poll::Ready(self.finish()),
            }
        }
    }

    fn push(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) => {
                self.held.push(Frame::data(data));
                if self.engine.is_none() && self.held.bytes() > self.fit.limit {
                    self.engine = Some(Engine::new(Arc::clone(&self.fit)));
                }
            }
            Err(frame) => self.trailers = frame.into_trailers().ok(),
        }
    }

    /// Scans what has come, if that is known not to fit as it is.
    fn poll_scan(&mut self, budget: &mut usize, cx: &mut Context<'_>) -> Poll<Result<(), Unfit>> {
        while let Some(mut engine) = self.engine.take() {
            if self.chunk.is_empty() {
                let next = self.held.pop().and_then(|frame| frame.into_data().ok());
                self.chunk = next.unwrap_or_default();
            }
            if self.chunk.is_empty() || *budget == 0 {
                self.engine = Some(engine);
                if self.chunk.is_empty() {
                    break;
                }
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let turn = self.chunk.split_to(self.chunk.len().min(*budget));
            *budget -= turn.len();
            match engine.feed(&turn) {
                Ok(()) => self.engine = Some(engine),
                Err(stop) => return Poll::Ready(Err(engine.unfit(stop, self.declared))),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn finish(&mut self) -> End {
        match self.engine.take().map(Engine::finish) {
            None => End::Fits(self.with_trailers()),
            Some(Ok((report, blocks))) => {
                for block in blocks {
                    self.held.push(Frame::data(block));
                }
                if let Some(trailers) = &mut self.trailers {
                    forget_the_whole(trailers);
                }
                End::Changed(report, self.with_trailers())
            }
            Some(Err(unfit)) => End::Unfit(unfit),
        }
    }

    fn with_trailers(&mut self) -> Held {
        let mut held = mem::take(&mut self.held);
        if let Some(trailers) = self.trailers.take() {
            held.push(Frame::trailers(trailers));
        }
        held
    }

    fn failed(&mut self, error: Error) -> End {
        // The start of a document that was being changed would be neither the old one nor the new.
        let is_old = self.engine.is_none();
        let held = mem::take(&mut self.held);
        End::Failed(if is_old { held } else { Held::default() }, error)
    }
}
