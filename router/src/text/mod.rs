//! Text lives here and nowhere else: tokenizer, chat template, incremental detokenizer, stop strings.
//!
//! Everything in this module is synchronous and pure after loading. Encoding a long prompt takes milliseconds and
//! belongs off the async threads: see [`TextPool`].

mod chat_template;
mod content_guard;
mod detokenizer;
mod error;
mod generation_config;
mod model_text;
mod pool;
mod python_json;
mod stop_strings;
#[cfg(test)]
mod tests;

pub use chat_template::{ChatMessage, ChatOptions};
pub use content_guard::RenderedChat;
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use generation_config::GenerationDefaults;
pub use model_text::ModelText;
pub use pool::TextPool;
pub use stop_strings::{StopStrings, Stopped};
