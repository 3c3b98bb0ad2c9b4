//! What `baton up` tells whoever started it.

use std::time::Duration;

use super::Member;

/// The text printed when everything serves. The first member is the router.
pub(super) fn text(model: &str, members: &[Member], took: Duration) -> String {
    use std::fmt::Write as _;

    let url = members.first().map_or("", |router| router.addr.as_str());
    let mut text = format!(
        "\nBaton serves {model} at http://{url} (ready in {:.2} s)\n\n",
        took.as_secs_f64()
    );
    for Member { name, addr, pid } in members {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {name:<18} {addr:<22} pid {pid}");
    }
    let _ = write!(
        text,
        "\nTry it:\n  curl -N http://{url}/v1/chat/completions -H 'content-type: application/json' \\\n    -d \
         '{{\"model\": \"{model}\", \"stream\": true, \"messages\": [{{\"role\": \"user\", \"content\": \"Tell me a \
         short story.\"}}]}}'\n\nCtrl-C drains and stops everything.\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_url_the_model_and_every_member() {
        let member = |name: &str, addr: &str| Member {
            name: name.into(),
            addr: addr.into(),
            pid: 7,
        };
        let members = [
            member("router", "127.0.0.1:8000"),
            member("decode-worker-0", "127.0.0.1:9"),
        ];
        let text = text("tiny", &members, Duration::from_millis(1234));
        for part in [
            "curl -N http://127.0.0.1:8000/v1/chat",
            "\"model\": \"tiny\"",
            "decode-worker-0",
            "1.23 s",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
