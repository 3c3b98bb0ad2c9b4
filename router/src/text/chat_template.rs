//! Chat templates with the semantics of `transformers`' `apply_chat_template`.
//!
//! `trim_blocks` and `lstrip_blocks` are on, `raise_exception`, `tojson` and Python's string methods exist, `tools` and
//! `documents` are none. `strftime_now` is left undefined on purpose: templates test for it, and a prompt that holds
//! today's date is neither reproducible nor cacheable.

use minijinja::{Environment, Error, ErrorKind, Value, value::Kwargs};
use serde::Serialize;

use super::{TextError, python_json};

/// Instructions that one rendering may take: some thousand messages need a hundredth of it.
const FUEL: u64 = 5_000_000;
const NAME: &str = "chat";

/// One turn, with its parts already joined to one text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    pub role: String,
    pub content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What a request may say about the rendering.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Ends the prompt where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// More variables for the template, as in `enable_thinking`.
    pub variables: Vec<(String, serde_json::Value)>,
}

/// A compiled template with the variables that never change.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl ChatMessage {
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            name: None,
        }
    }
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            variables: Vec::new(),
        }
    }
}

impl ChatTemplate {
    pub(super) fn compile(
        source: &str,
        bos_token: Option<String>,
        eos_token: Option<String>,
    ) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", |value: Value, options: Kwargs| {
            python_json::tojson(&value, &options)
        });
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raised by the template")
                .with_source(Raised(message)))
        });
        environment.add_template_owned(NAME, without_generation_tags(source))?;
        Ok(Self {
            environment,
            bos_token,
            eos_token,
        })
    }

    pub(super) fn render(
        &self,
        messages: &[ChatMessage],
        options: &ChatOptions,
    ) -> Result<String, TextError> {
        let mut variables: Vec<(&str, Value)> = options
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), Value::from_serialize(value)))
            .collect();
        // Later entries win: a request cannot replace these.
        variables.push(("messages", Value::from_serialize(messages)));
        variables.push((
            "add_generation_prompt",
            Value::from(options.add_generation_prompt),
        ));
        variables.push(("tools", Value::from(())));
        variables.push(("documents", Value::from(())));
        for (name, token) in [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)] {
            if let Some(token) = token {
                variables.push((name, Value::from(token.as_str())));
            }
        }
        let context: Value = variables.into_iter().collect();
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|error| render_error(&error))
    }
}

/// What a template passed to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn render_error(error: &Error) -> TextError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::Endless(FUEL);
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return TextError::Refused(message.clone());
        }
        source = cause.source();
    }
    TextError::Render(error.to_string())
}

/// `transformers` marks the assistant's tokens for training with `{% generation %}` blocks, which do not change the text.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let end = start + length + 2;
        let inner = &rest[start + 2..end - 2];
        let name = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..start]);
        if name == "generation" || name == "endgeneration" {
            // An empty comment keeps the tag's whitespace control.
            let (before, after) = (dash(inner.starts_with('-')), dash(inner.ends_with('-')));
            out.push_str(&format!("{{#{before} {after}#}}"));
        } else {
            out.push_str(&rest[start..end]);
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn dash(present: bool) -> &'static str {
    if present { "-" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[ChatMessage]) -> Result<String, TextError> {
        ChatTemplate::compile(source, Some("<s>".into()), Some("</s>".into()))
            .expect("compiles")
            .render(messages, &ChatOptions::default())
    }

    #[test]
    fn blocks_are_trimmed_as_transformers_does() {
        let source = "{{ bos_token }}\n{% for m in messages %}\n    {% if m.role == 'user' %}\nU:{{ m.content.strip() }}\n    {% endif %}\n{% endfor %}\n{{ eos_token }}\n";
        let text = render(source, &[ChatMessage::new("user", "  hi ")]).expect("renders");
        assert_eq!(text, "<s>\nU:hi\n</s>");
    }

    #[test]
    fn a_template_that_raises_is_told_from_one_that_fails_and_one_that_never_ends() {
        let raised = render("{{ raise_exception('roles must alternate') }}", &[]).expect_err("raises");
        assert!(
            matches!(&raised, TextError::Refused(message) if message == "roles must alternate"),
            "{raised}"
        );
        let failed = render(
            "{{ messages[0].content.nothing() }}",
            &[ChatMessage::new("user", "x")],
        );
        assert!(matches!(failed, Err(TextError::Render(_))), "{failed:?}");
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless, &[]), Err(TextError::Endless(_))));
    }

    #[test]
    fn tojson_is_pythons_and_optional_names_are_undefined_or_none() {
        let source =
            "{{ {'a': [1, 'é<'], 'b': true}|tojson }}|{{ strftime_now is defined }}|{{ tools is none }}";
        let text = render(source, &[]).expect("renders");
        assert_eq!(text, r#"{"a": [1, "é<"], "b": true}|False|True"#);
    }

    #[test]
    fn generation_blocks_do_not_change_the_text() {
        let source =
            "a {%- generation -%} b {%- endgeneration %} c{% for m in messages %}{{ m.content }}{% endfor %}";
        assert_eq!(
            render(source, &[ChatMessage::new("user", "!")]).expect("renders"),
            "ab c!"
        );
    }
}
