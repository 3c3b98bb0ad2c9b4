//! The text side of one model directory in the Hugging Face layout.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};
use tokenizers::Tokenizer;

use super::{
    ChatMessage, ChatOptions, GenerationDefaults, RenderedChat, TextError, chat_template::ChatTemplate,
    content_guard::ContentGuard, generation_config::ModelConfig,
};

/// Tokenizer, chat template and generation defaults of a model. Cheap to share, immutable.
#[derive(Debug)]
pub struct ModelText {
    tokenizer: Tokenizer,
    guard: ContentGuard,
    template: Option<ChatTemplate>,
    defaults: GenerationDefaults,
    eos_ids: Vec<u32>,
    bos: Option<(String, u32)>,
    context_tokens: Option<u32>,
    vocabulary: u32,
}

impl ModelText {
    /// Reads `tokenizer.json` (required), `tokenizer_config.json`, `chat_template.jinja`, `generation_config.json` and
    /// `config.json`.
    ///
    /// # Errors
    /// [`TextError`] naming the file that is missing or malformed.
    pub fn load(directory: &Path) -> Result<Self, TextError> {
        let path = directory.join("tokenizer.json");
        let file = read(&path)?.ok_or_else(|| TextError::Read {
            path: path.clone(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let malformed = |detail: String| TextError::Malformed {
            path: path.clone(),
            detail,
        };
        let mut tokenizer = Tokenizer::from_bytes(&file).map_err(|error| malformed(error.to_string()))?;
        // Some checkpoints ship with the limits of their training pipeline.
        tokenizer
            .with_truncation(None)
            .map_err(|error| malformed(error.to_string()))?;
        tokenizer.with_padding(None);
        let nonce =
            getrandom::u64().and_then(|high| Ok((u128::from(high) << 64) | u128::from(getrandom::u64()?)));
        let guard = ContentGuard::new(
            &path,
            &file,
            &tokenizer,
            nonce.map_err(|error| malformed(error.to_string()))?,
        )?;

        let settings: TokenizerConfig = parse_optional(&directory.join("tokenizer_config.json"))?;
        let defaults: GenerationDefaults = parse_optional(&directory.join("generation_config.json"))?;
        let model: ModelConfig = parse_optional(&directory.join("config.json"))?;
        let bos_token = settings.bos_token.map(TokenName::into_text);
        let eos_token = settings.eos_token.map(TokenName::into_text);

        let mut eos_ids: Vec<u32> = [&defaults.eos_token_id, &model.eos_token_id]
            .into_iter()
            .flatten()
            .next()
            .map(|ids| ids.ids().to_vec())
            .unwrap_or_default();
        eos_ids.extend(
            eos_token
                .as_deref()
                .and_then(|token| tokenizer.token_to_id(token)),
        );
        eos_ids.sort_unstable();
        eos_ids.dedup();

        let bos = bos_token.clone().and_then(|token| {
            let id = tokenizer.token_to_id(&token)?;
            Some((token, id))
        });
        let template = match template_source(directory, settings.chat_template)? {
            None => None,
            Some((path, source)) => Some(ChatTemplate::compile(&source, bos_token, eos_token).map_err(
                |error| TextError::Template {
                    path,
                    detail: error.to_string(),
                },
            )?),
        };
        let highest = tokenizer.get_vocab(true).into_values().max();
        Ok(Self {
            vocabulary: highest.map_or(0, |id| id.saturating_add(1)),
            tokenizer,
            guard,
            template,
            defaults,
            eos_ids,
            bos,
            context_tokens: model.max_position_embeddings,
        })
    }

    /// Renders the chat template as `transformers` does. What the messages say stays text: see [`RenderedChat`].
    ///
    /// # Errors
    /// [`TextError::NoTemplate`], or what the template makes of the messages.
    pub fn render_chat(
        &self,
        messages: &[ChatMessage],
        options: &ChatOptions,
    ) -> Result<RenderedChat, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        let (mut messages, mut options) = (messages.to_vec(), options.clone());
        let mark = self.guard.protect(&mut messages, &mut options)?;
        Ok(ContentGuard::rendered(
            template.render(&messages, &options)?,
            mark,
        ))
    }

    /// Ids of a rendered chat. Nothing is added: a template writes its own BOS.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn encode_chat(&self, chat: &RenderedChat) -> Result<Vec<u32>, TextError> {
        self.guard.encode(&self.tokenizer, chat)
    }

    /// Ids of a raw prompt, in which special-token text is special. With `add_special_tokens` the tokenizer adds what it
    /// adds, except for a second BOS where the text has one already.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(|error| TextError::Tokenizer(error.to_string()))?;
        let mut ids = encoding.get_ids().to_vec();
        if let Some((token, id)) = &self.bos
            && add_special_tokens
            && text.starts_with(token.as_str())
            && ids.starts_with(&[*id, *id])
        {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// Text of `ids`; bytes that are no UTF-8 show as U+FFFD.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        self.tokenizer
            .decode(ids, skip_special_tokens)
            .map_err(|error| TextError::Tokenizer(error.to_string()))
    }

    /// Refuses ids that no embedding row belongs to.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] with the first such id.
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), TextError> {
        match ids.iter().find(|id| **id >= self.vocabulary) {
            None => Ok(()),
            Some(id) => Err(TextError::UnknownToken(*id, self.vocabulary)),
        }
    }

    /// Tokens that end an answer, ascending.
    #[must_use]
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    #[must_use]
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.defaults
    }

    /// Longest sequence the model was made for, where `config.json` says so.
    #[must_use]
    pub fn context_tokens(&self) -> Option<u32> {
        self.context_tokens
    }

    /// One more than the highest token id.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The id of a token by its exact text.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }
}

/// The part of `tokenizer_config.json` that is used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    bos_token: Option<TokenName>,
    eos_token: Option<TokenName>,
    chat_template: Option<TemplateSource>,
}

/// Older files write the whole added token.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TokenName {
    Text(String),
    Token { content: String },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TemplateSource {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl TokenName {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Token { content: text } => text,
        }
    }
}

/// `chat_template.jinja` wins, as in `transformers`; of named templates the one called `default` is used.
fn template_source(
    directory: &Path,
    configured: Option<TemplateSource>,
) -> Result<Option<(PathBuf, String)>, TextError> {
    let path = directory.join("chat_template.jinja");
    if let Some(bytes) = read(&path)? {
        let source = String::from_utf8(bytes).map_err(|error| TextError::Malformed {
            path: path.clone(),
            detail: error.to_string(),
        })?;
        return Ok(Some((path, source)));
    }
    let source = match configured {
        None => None,
        Some(TemplateSource::One(source)) => Some(source),
        Some(TemplateSource::Named(named)) => named
            .into_iter()
            .find(|named| named.name == "default")
            .map(|named| named.template),
    };
    Ok(source.map(|source| (directory.join("tokenizer_config.json"), source)))
}

fn parse_optional<T: DeserializeOwned + Default>(path: &Path) -> Result<T, TextError> {
    match read(path)? {
        None => Ok(T::default()),
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| TextError::Malformed {
            path: path.to_path_buf(),
            detail: error.to_string(),
        }),
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read {
            path: path.to_path_buf(),
            source,
        }),
    }
}
