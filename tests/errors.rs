//! The error: what it says, and that it is found in whatever it was wrapped.

mod support;

use std::{error::Error as StdError, io, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use support::{Hint, Script, Step::Fail, VARIANTS, data, drive::Drive};
use tokio::io::AsyncWriteExt;
use tower::{Layer, Service, service_fn};
use tower_body_limit::{
    BodyLimitExt, Error, LimitedBody, RequestSizeLimitLayer, ResponseSizeLimitLayer, Subject,
    TooLarge,
};

type BoxError = Box<dyn StdError + Send + Sync>;

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Transparent(BoxError);

#[derive(Debug, thiserror::Error)]
#[error("a layer above")]
struct Above(#[source] BoxError);

fn breach() -> Error {
    let body = String::from("eleven byte").limited(10);
    body.collect().now_or_never().unwrap().unwrap_err()
}

/// The error without our own wrapper, as nobody gets it from us.
fn bare() -> TooLarge {
    breach().too_large().unwrap().clone()
}

fn io_failure() -> Error {
    let body = LimitedBody::new(Script::new([data(4), Fail], Hint::Undeclared), 10);
    Drive::to_end(body).error.unwrap()
}

type Wrap = fn(BoxError) -> BoxError;

const WRAPPERS: [(&str, Wrap); 8] = [
    ("above", |error| Box::new(Above(error))),
    ("io", |error| Box::new(io::Error::other(error))),
    ("axum", |error| Box::new(axum::Error::new(error))),
    ("status", |error| Box::new(tonic::Status::from_error(error))),
    ("transparent", |error| Box::new(Transparent(error))),
    ("arc dyn", |error| {
        Box::new(Arc::<dyn StdError + Send + Sync>::from(error))
    }),
    ("arc io", |error| {
        Box::new(Arc::new(io::Error::other(error)))
    }),
    ("box io", |error| {
        Box::new(Box::new(io::Error::other(error)))
    }),
];

#[test]
fn it_is_found_under_any_wrappers_to_any_depth() {
    for start in 0..WRAPPERS.len() {
        // These give each wrapper each wrapper as its neighbour, itself included.
        for step in 0..WRAPPERS.len() {
            let mut error: BoxError = Box::new(breach());
            let mut names = Vec::new();
            for depth in 0..=8 {
                let found = TooLarge::find(&*error).map(TooLarge::limit);
                assert_eq!(found, Some(10), "below {names:?}");
                let (name, wrap) = WRAPPERS[(start + depth * step) % WRAPPERS.len()];
                names.push(name);
                error = wrap(error);
            }
        }
    }
}

#[test]
fn it_is_found_without_our_own_wrapper_around_it() {
    let arc: Arc<dyn StdError + Send + Sync> = Arc::new(bare());
    let nested_arc: Arc<dyn StdError + Send + Sync> = Arc::new(io::Error::other(bare()));
    let unsendable: Arc<dyn StdError> = Arc::new(bare());
    let table: Vec<(&str, Box<dyn StdError>)> = vec![
        ("itself", Box::new(bare())),
        ("io", Box::new(io::Error::other(bare()))),
        (
            "io in io",
            Box::new(io::Error::other(io::Error::other(bare()))),
        ),
        ("arc", Box::new(Arc::new(bare()))),
        ("box", Box::new(Box::new(bare()))),
        ("arc io", Box::new(Arc::new(io::Error::other(bare())))),
        ("box io", Box::new(Box::new(io::Error::other(bare())))),
        ("arc dyn", Box::new(arc.clone())),
        ("arc dyn, not Send", Box::new(unsendable)),
        ("io in arc dyn", Box::new(nested_arc)),
        ("arc dyn in io", Box::new(io::Error::other(arc))),
        (
            "axum in io",
            Box::new(io::Error::other(axum::Error::new(bare()))),
        ),
        (
            "status",
            Box::new(tonic::Status::from_error(Box::new(bare()))),
        ),
        ("ours in arc", Box::new(Arc::new(breach()))),
        ("ours in box", Box::new(Box::new(breach()))),
    ];
    for (case, error) in table {
        assert_eq!(TooLarge::find(&*error), Some(&bare()), "{case}");
    }
}

#[test]
fn what_is_no_breach_is_never_found_as_one() {
    let mut error: BoxError = Box::new(io_failure());
    for (_, wrap) in WRAPPERS {
        assert_eq!(TooLarge::find(&*error), None);
        error = wrap(error);
    }
    assert_eq!(TooLarge::find(&*error), None);
    assert_eq!(
        TooLarge::find(&io::Error::from(io::ErrorKind::UnexpectedEof)),
        None
    );
}

#[tokio::test]
async fn it_is_found_in_the_error_of_a_hyper_connection() {
    for variant in VARIANTS {
        let variant = &variant;
        let (mut client, server) = tokio::io::duplex(1024);
        let request = b"GET / HTTP/1.1\r\nhost: example.com\r\nconnection: close\r\n\r\n";
        client.write_all(request).await.unwrap();
        let service = hyper::service::service_fn(async |_| {
            let script = Script::new([data(11)], variant.clone());
            Ok::<_, io::Error>(Response::new(script.limited(10)))
        });
        let error = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service)
            .await
            .unwrap_err();
        assert_eq!(TooLarge::find(&error).unwrap().limit(), 10);
        let wrapped = io::Error::other(Arc::new(error));
        assert_eq!(TooLarge::find(&wrapped).unwrap().limit(), 10);
    }
}

#[tokio::test]
async fn it_is_found_in_the_error_of_a_reqwest_response() {
    for variant in VARIANTS {
        let script = Script::new([data(11)], variant);
        let body = reqwest::Body::wrap(script.limited(10));
        let response = reqwest::Response::from(Response::new(body));
        let error = response.bytes().await.unwrap_err();
        assert_eq!(TooLarge::find(&error).unwrap().limit(), 10);
    }
    let failing = Script::new([data(4), Fail], Hint::Undeclared);
    let body = reqwest::Body::wrap(failing.limited(10));
    let error = reqwest::Response::from(Response::new(body))
        .bytes()
        .await
        .unwrap_err();
    assert_eq!(TooLarge::find(&error), None);
}

fn chain(error: &dyn StdError) -> Vec<String> {
    std::iter::successors(Some(error), |&error| error.source())
        .map(ToString::to_string)
        .collect()
}

#[tokio::test]
async fn each_level_has_words_of_its_own_and_only_the_inner_one_a_number() {
    let failing = service_fn(async |_: Request<LimitedBody<String>>| {
        Err::<Response<String>, _>(io::Error::other("out of order"))
    });
    let service = RequestSizeLimitLayer::client(10).layer(failing);
    let service_failure = tower::ServiceExt::oneshot(service, Request::new(String::new())).await;
    let table = [
        (
            breach(),
            vec![
                "a size limit was exceeded",
                "the body is larger than its limit of 10 bytes",
            ],
        ),
        (
            io_failure(),
            vec!["the wrapped body failed", "the script failed"],
        ),
        (
            service_failure.unwrap_err(),
            vec!["the wrapped service failed", "out of order"],
        ),
    ];
    for (error, texts) in table {
        let found = chain(&error);
        assert_eq!(found, texts);
        assert!(!found[0].contains(|c: char| c.is_ascii_digit()));
        assert!(!found[0].contains(&found[1]) && !found[1].contains(&found[0]));
    }
}

#[test]
fn the_text_names_the_subject_and_the_label() {
    let uploads = RequestSizeLimitLayer::client(10).label("uploads");
    assert_eq!(
        refused(uploads).to_string(),
        "the request body is larger than its limit of 10 bytes (uploads)"
    );
    assert_eq!(
        refused(RequestSizeLimitLayer::client(10)).to_string(),
        "the request body is larger than its limit of 10 bytes"
    );
    assert_eq!(
        received(ResponseSizeLimitLayer::client(10)).to_string(),
        "the response body is larger than its limit of 10 bytes"
    );
    assert_eq!(Subject::Record.to_string(), "record");
}

/// The error of a call whose request declares 11 bytes.
fn refused(layer: tower_body_limit::ClientRequestSizeLimitLayer) -> TooLarge {
    let never = service_fn(async |_: Request<LimitedBody<String>>| -> io::Result<()> {
        unreachable!("the inner service was called")
    });
    let call = layer.layer(never).call(Request::new("eleven byte".into()));
    call.now_or_never()
        .unwrap()
        .unwrap_err()
        .too_large()
        .unwrap()
        .clone()
}

/// The error of a response that is found to have 11 bytes: in its extensions, or in its body.
fn received(layer: ResponseSizeLimitLayer) -> TooLarge {
    let eleven = service_fn(async |_: Request<()>| {
        io::Result::Ok(Response::new(Full::<Bytes>::from("eleven byte")))
    });
    let call = layer.layer(eleven).call(Request::new(()));
    let response = call.now_or_never().unwrap().unwrap();
    if let Some(error) = response.extensions().get() {
        return TooLarge::clone(error);
    }
    let failure = response
        .into_body()
        .collect()
        .now_or_never()
        .unwrap()
        .unwrap_err();
    failure.too_large().unwrap().clone()
}

#[test]
fn it_says_who_limited_what_and_which_status_fits() {
    let server = || ResponseSizeLimitLayer::server(10);
    let request = || {
        let inner = service_fn(async |_: Request<LimitedBody<String>>| {
            io::Result::Ok(Response::new(Empty::<Bytes>::new()))
        });
        let service = RequestSizeLimitLayer::server(10).label("in").layer(inner);
        let request = Request::new(String::from("eleven byte"));
        let response = { service }.call(request).now_or_never().unwrap().unwrap();
        response.extensions().get::<TooLarge>().unwrap().clone()
    };
    let table = [
        (bare(), Subject::Body, 500, None),
        (request(), Subject::Request, 413, Some("in")),
        (
            refused(RequestSizeLimitLayer::client(10).label("out")),
            Subject::Request,
            413,
            Some("out"),
        ),
        (
            received(server().label("web")),
            Subject::Response,
            500,
            Some("web"),
        ),
        (received(server().gateway()), Subject::Response, 502, None),
        (
            received(ResponseSizeLimitLayer::client(10).label("api")),
            Subject::Response,
            502,
            Some("api"),
        ),
    ];
    for (error, subject, status, label) in table {
        assert_eq!((error.limit(), error.declared()), (10, Some(11)));
        assert_eq!((error.read(), error.read_is_total()), (0, false));
        assert_eq!(error.subject(), subject);
        assert_eq!(error.status(), StatusCode::from_u16(status).unwrap());
        assert_eq!(error.label(), label);
    }
}

#[test]
fn nested_limits_look_like_one_whatever_is_between_them() {
    for variant in VARIANTS {
        for (name, wrap) in WRAPPERS {
            let script = Script::new([data(11)], variant.clone());
            let between = script
                .limited(10)
                .map_err(move |error| wrap(Box::new(error)));
            let error = Drive::to_end(between.limited(100)).error.unwrap();
            let Error::TooLarge(too_large) = &error else {
                panic!("{name}: {error:?}");
            };
            assert_eq!(too_large.limit(), 10);
            assert_eq!(chain(&error).len(), 2, "{name}");
        }
    }
}

/// The variants are public, so somebody may have put one around a breach.
#[test]
fn a_breach_inside_one_of_our_own_errors_is_taken_out() {
    let made: [fn(BoxError) -> Error; 2] = [Error::Body, Error::Service];
    for variant in VARIANTS {
        for make in made {
            let script = Script::new([data(11)], variant.clone());
            let between = script
                .limited(10)
                .map_err(move |error| make(Box::new(io::Error::other(error))));
            let error = Drive::to_end(between.limited(100)).error.unwrap();
            assert_eq!(error.too_large().unwrap().limit(), 10);
        }
    }
}

#[test]
fn an_inner_failure_keeps_its_type_through_nested_limits() {
    for variant in VARIANTS {
        let script = Script::new([data(4), Fail], variant);
        let error = Drive::to_end(script.limited(10).limited(100))
            .error
            .unwrap();
        let Error::Body(inner) = &error else {
            panic!("{error:?}");
        };
        let inner = inner.downcast_ref::<io::Error>().unwrap();
        assert_eq!(inner.kind(), io::ErrorKind::ConnectionReset);
    }
}
