//! The fields of a JSON object, taken one by one, so that errors can name them and what is left over is known.

use serde_json::{Map, Value};

use crate::error::RequestError;

/// `null` is the same as absence, as OpenAI's clients mean it.
#[derive(Debug)]
pub(super) struct Fields {
    /// Path of the object in the body, with a trailing dot; empty at the top.
    path: String,
    fields: Map<String, Value>,
}

impl Fields {
    pub(super) fn new(fields: Map<String, Value>) -> Self {
        Self {
            path: String::new(),
            fields,
        }
    }

    /// The object at `path`.
    pub(super) fn at(path: &str, value: Value) -> Result<Self, RequestError> {
        match value {
            Value::Object(fields) => Ok(Self {
                path: format!("{path}."),
                fields,
            }),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    /// The field's path in the body.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// A field that stays, for a look before it is refused or ignored.
    pub(super) fn peek(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.path(name), "a string", &other)),
        }
    }

    pub(super) fn boolean(&mut self, name: &str) -> Result<Option<bool>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong_type(&self.path(name), "true or false", &other)),
        }
    }

    pub(super) fn number(&mut self, name: &str) -> Result<Option<f64>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => value
                .as_f64()
                .map(Some)
                .ok_or_else(|| wrong_type(&self.path(name), "a number", &value)),
        }
    }

    /// An integer that fits into `T`.
    pub(super) fn integer<T: TryFrom<i128>>(&mut self, name: &str) -> Result<Option<T>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => integer(&self.path(name), &value).map(Some),
        }
    }

    pub(super) fn token_ids(&mut self, name: &str) -> Result<Option<Vec<u32>>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => token_ids(&self.path(name), &value).map(Some),
        }
    }

    /// Names of what nobody has taken, except for nulls.
    pub(super) fn ignored(self) -> Vec<String> {
        let path = self.path;
        self.fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, _)| format!("{path}{name}"))
            .collect()
    }
}

pub(super) fn token_ids(path: &str, value: &Value) -> Result<Vec<u32>, RequestError> {
    let Value::Array(values) = value else {
        return Err(wrong_type(path, "an array of token ids", value));
    };
    values
        .iter()
        .enumerate()
        .map(|(index, value)| integer(&format!("{path}[{index}]"), value))
        .collect()
}

pub(super) fn integer<T: TryFrom<i128>>(path: &str, value: &Value) -> Result<T, RequestError> {
    let number = match value {
        Value::Number(number) => number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from)),
        _ => None,
    };
    let number = number.ok_or_else(|| wrong_type(path, "an integer", value))?;
    T::try_from(number)
        .map_err(|_| RequestError::field(path, format!("{path} is {number}, which is out of range")))
}

pub(super) fn wrong_type(path: &str, expected: &str, found: &Value) -> RequestError {
    RequestError::Invalid {
        param: Some(path.to_owned()),
        code: "invalid_type",
        message: format!("{path} must be {expected}, not {}.", kind(found)),
    }
}

pub(super) fn missing(path: &str) -> RequestError {
    RequestError::Invalid {
        param: Some(path.to_owned()),
        code: "missing_required_parameter",
        message: format!("Missing required parameter: '{path}'."),
    }
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a decimal number",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
