//! A router on free ports, and how tests talk to it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use baton_proto::v1::{DecodeRequest, FinishReason};
use baton_router::{Router, RouterConfig, RunningRouter, text::ModelText};
use serde_json::{Value, json};

use crate::worker::{Script, Step, finished, prefilled, tokens};

pub(crate) struct Fleet {
    pub(crate) router: RunningRouter,
    pub(crate) http: reqwest::Client,
}

pub(crate) fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/baton-tiny")
}

pub(crate) fn text() -> &'static ModelText {
    static TEXT: std::sync::OnceLock<ModelText> = std::sync::OnceLock::new();
    TEXT.get_or_init(|| ModelText::load(&directory()).expect("bundled model"))
}

pub(crate) fn ids(words: &str) -> Vec<u32> {
    text().encode(words, false).expect("encodes")
}

pub(crate) fn script(steps: impl Fn(&DecodeRequest) -> Vec<Step> + Send + Sync + 'static) -> Script {
    Arc::new(steps)
}

/// Answers every choice with `words`, a token at a time, ended by an EOS token.
pub(crate) fn says(words: &str) -> Script {
    let ids = ids(words);
    script(move |request| {
        let mut steps = vec![prefilled("p0", 3)];
        for choice in 0..u32::try_from(request.choices.len()).expect("few") {
            steps.extend(ids.iter().map(|id| tokens(choice, &[*id])));
            steps.push(finished(choice, FinishReason::Stop));
        }
        steps
    })
}

impl Fleet {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut RouterConfig)) -> Self {
        let mut config = RouterConfig {
            listen: "127.0.0.1:0".parse().expect("address"),
            grpc_listen: "127.0.0.1:0".parse().expect("address"),
            model: directory(),
            served_model_name: "tiny".into(),
            ..RouterConfig::default()
        };
        change(&mut config);
        let router = Router::start(config, prometheus::Registry::new())
            .await
            .expect("router starts");
        Self {
            router,
            http: reqwest::Client::new(),
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.router.http_addr)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        self.http
            .post(self.url(path))
            .json(body)
            .send()
            .await
            .expect("the router answers")
    }

    pub(crate) async fn get(&self, path: &str) -> reqwest::Response {
        self.http
            .get(self.url(path))
            .send()
            .await
            .expect("the router answers")
    }

    pub(crate) async fn json(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.post(path, body).await;
        let status = response.status().as_u16();
        (status, response.json().await.expect("a JSON body"))
    }

    /// A chat of one user message, with more fields.
    pub(crate) async fn chat(&self, more: &Value) -> (u16, Value) {
        self.json("/v1/chat/completions", &chat_body(more)).await
    }

    pub(crate) async fn metric(&self, line: &str) -> bool {
        self.get("/metrics")
            .await
            .text()
            .await
            .expect("text")
            .lines()
            .any(|found| found == line)
    }

    pub(crate) async fn stop(self) {
        self.router.shutdown(Duration::from_secs(5)).await;
    }
}

pub(crate) fn chat_body(more: &Value) -> Value {
    let mut body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "hi" }] });
    let fields = body.as_object_mut().expect("an object");
    for (name, value) in more.as_object().expect("an object") {
        fields.insert(name.clone(), value.clone());
    }
    body
}

/// The payloads of a stream's events, and its comments.
pub(crate) fn events(body: &str) -> (Vec<String>, usize) {
    let mut data = Vec::new();
    let mut comments = 0;
    for event in body.split_terminator("\n\n") {
        match event.strip_prefix("data: ") {
            Some(payload) => data.push(payload.to_owned()),
            None => {
                assert!(event.starts_with(':'), "neither data nor a comment: {event:?}");
                comments += 1;
            }
        }
    }
    (data, comments)
}
