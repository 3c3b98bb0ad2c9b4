//! A running `baton up`, and an HTTP client that reads server-sent events as OpenAI's do.

use std::{
    path::Path,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::{Child, Command},
    sync::watch,
    time::timeout,
};

/// Everything that the process printed so far.
type Output = watch::Receiver<String>;

/// `baton up` on a free port, with the bundled model. Killed when dropped.
pub(crate) struct Up {
    process: Child,
    output: Output,
    url: String,
    pub(crate) banner: String,
    http: reqwest::Client,
}

/// One streamed answer.
pub(crate) struct ChatStream {
    pub(crate) decode_worker: String,
    events: std::pin::Pin<Box<dyn Stream<Item = String> + Send>>,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command
        .args(args)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs the program until it ends by itself.
pub(crate) async fn run_to_end(args: &[&str]) -> (ExitStatus, String) {
    let child = command(args).spawn().expect("the binary starts");
    let output = timeout(Duration::from_secs(30), child.wait_with_output())
        .await
        .expect("ends by itself");
    let output = output.expect("ran");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status, text)
}

/// Whether a process exists and is not merely waiting to be reaped.
pub(crate) fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('Z'))
    })
}

impl Up {
    pub(crate) async fn start(args: &[&str]) -> Self {
        let mut process = command(&[&["up", "--port", "0"], args].concat())
            .spawn()
            .expect("the binary starts");
        let output = collect([
            Box::new(process.stdout.take().expect("piped")) as Box<dyn AsyncRead + Send + Unpin>,
            Box::new(process.stderr.take().expect("piped")),
        ]);
        let mut ready = output.clone();
        let banner = timeout(
            Duration::from_secs(30),
            ready.wait_for(|text| text.contains("Ctrl-C")),
        )
        .await;
        let banner = banner
            .unwrap_or_else(|_| panic!("not ready: {}", *output.borrow()))
            .expect("running")
            .clone();
        let url = banner
            .split_whitespace()
            .find(|word| word.starts_with("http://"))
            .expect("a URL")
            .to_owned();
        Self {
            process,
            output,
            url,
            banner,
            http: reqwest::Client::new(),
        }
    }

    /// The process ids of the members, as the banner gave them.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.members().map(|(_, _, pid)| pid).collect()
    }

    /// (name, address, pid) of each line such as `  router  127.0.0.1:8000  pid 17`.
    fn members(&self) -> impl Iterator<Item = (&str, &str, u32)> {
        self.banner.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [name, addr, "pid", pid] => Some((name, addr, pid.parse().ok()?)),
                _ => None,
            }
        })
    }

    pub(crate) fn interrupt(&self) {
        signal(self.process.id().expect("running"), "INT");
    }

    pub(crate) fn kill_parent(&self) {
        signal(self.process.id().expect("running"), "KILL");
    }

    pub(crate) fn kill_member(&self, name: &str) {
        let (_, _, pid) = self.members().find(|member| member.0 == name).expect("a member");
        signal(pid, "KILL");
    }

    pub(crate) async fn ended(&mut self, limit: Duration) -> ExitStatus {
        let status = timeout(limit, self.process.wait()).await;
        status
            .unwrap_or_else(|_| panic!("still running: {}", *self.output.borrow()))
            .expect("waited")
    }

    /// Waits for a line of the log with both parts.
    pub(crate) async fn until_logged(&self, first: &str, second: &str, limit: Duration) {
        let has = |text: &String| {
            text.lines()
                .any(|line| line.contains(first) && line.contains(second))
        };
        let mut output = self.output.clone();
        let logged = timeout(limit, output.wait_for(has)).await;
        assert!(
            logged.is_ok(),
            "no line with {first:?} and {second:?}: {}",
            *self.output.borrow()
        );
    }

    pub(crate) async fn chat(&self, question: &str, max_tokens: u32) -> ChatStream {
        let messages = serde_json::json!([{"role": "user", "content": question}]);
        let body = serde_json::json!({"messages": messages, "max_tokens": max_tokens, "temperature": 0});
        self.stream("/v1/chat/completions", body).await
    }

    /// A stream that lasts for seconds.
    pub(crate) async fn long(&self) -> ChatStream {
        let body = serde_json::json!({"prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": true});
        self.stream("/v1/completions", body).await
    }

    async fn stream(&self, path: &str, mut body: serde_json::Value) -> ChatStream {
        body["model"] = "baton-tiny".into();
        body["stream"] = true.into();
        let response = self
            .http
            .post(format!("{}{path}", self.url))
            .json(&body)
            .send()
            .await
            .expect("answered");
        let response = response.error_for_status().expect("accepted");
        let decode_worker = response.headers()["x-baton-decode"]
            .to_str()
            .expect("text")
            .to_owned();
        ChatStream {
            decode_worker,
            events: Box::pin(events(response)),
        }
    }

    /// Waits until no worker says that a page is in use.
    pub(crate) async fn until_pages_are_back(&self, limit: Duration) {
        let workers: Arc<[String]> = self
            .members()
            .filter(|member| member.0 != "router")
            .map(|member| format!("http://{}", member.1))
            .collect();
        let back = async {
            for worker in workers.iter() {
                while self.pages_in_use(worker).await.is_none_or(|pages| pages > 0.0) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        timeout(limit, back).await.expect("all pages come back");
    }

    /// `None` while the worker is away: a restarted one has another port than the banner says.
    async fn pages_in_use(&self, worker: &str) -> Option<f64> {
        let Ok(response) = self.http.get(format!("{worker}/metrics")).send().await else {
            return Some(0.0);
        };
        let text = response.text().await.ok()?;
        let pages = text
            .lines()
            .filter(|line| line.starts_with("baton_engine_pages{"));
        let in_use = pages.filter(|line| line.contains("mutable") || line.contains("retiring"));
        Some(
            in_use
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum(),
        )
    }
}

impl ChatStream {
    /// The next piece of text; none at the end.
    pub(crate) async fn next_delta(&mut self) -> Result<Option<String>, String> {
        let Some(event) = self.events.next().await else {
            return Err("the stream broke without [DONE]".into());
        };
        if event == "[DONE]" {
            return Ok(None);
        }
        let event: serde_json::Value = serde_json::from_str(&event).map_err(|error| error.to_string())?;
        if let Some(error) = event.get("error") {
            return Err(error["message"].as_str().unwrap_or("no message").to_owned());
        }
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        Ok(Some(text.unwrap_or("").to_owned()))
    }

    /// The rest of the text.
    pub(crate) async fn text(mut self) -> Result<String, String> {
        let mut text = String::new();
        while let Some(delta) = self.next_delta().await? {
            text.push_str(&delta);
        }
        Ok(text)
    }
}

/// The payloads of the `data:` lines.
fn events(response: reqwest::Response) -> impl Stream<Item = String> + Send {
    let bytes = response
        .bytes_stream()
        .map(|bytes| bytes.map(|bytes| bytes.to_vec()).unwrap_or_default());
    let mut pending = Vec::new();
    bytes.flat_map(move |bytes| {
        pending.extend(bytes);
        let mut found = Vec::new();
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let line = String::from_utf8(line).expect("UTF-8");
            found.extend(line.trim_end().strip_prefix("data: ").map(str::to_owned));
        }
        futures::stream::iter(found)
    })
}

fn collect(pipes: [Box<dyn AsyncRead + Send + Unpin>; 2]) -> Output {
    let (sender, output) = watch::channel(String::new());
    let sender = Arc::new(sender);
    for pipe in pipes {
        let sender = Arc::clone(&sender);
        tokio::spawn(async move {
            let mut lines = BufReader::new(pipe).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                sender.send_modify(|text| {
                    text.push_str(&line);
                    text.push('\n');
                });
            }
        });
    }
    output
}

fn signal(pid: u32, name: &str) {
    let sent = std::process::Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .status();
    assert!(sent.is_ok_and(|status| status.success()), "cannot signal {pid}");
}
