//! From a wire message to a request that the engine can take.

use baton_engine::{
    EngineHandle, RequestHandle,
    request::{ChoiceStart, EngineRequest, StopRules, Work},
};
use baton_proto::{BlockHasher, CacheScope};

use crate::{
    Admission, Permit, ServeError,
    metrics::WorkerMetrics,
    request::{CheckedFields, RequestBounds, RequestFields},
};

/// Checks, admits and submits requests. Clones are the same intake.
#[derive(Clone)]
pub struct Intake {
    pub(crate) model: String,
    pub(crate) bounds: RequestBounds,
    pub(crate) hasher: BlockHasher,
    pub(crate) admission: Admission,
    pub(crate) engine: EngineHandle,
    pub(crate) metrics: WorkerMetrics,
}

/// A request that may run here.
#[derive(Debug)]
pub struct Admitted {
    id: String,
    scope: CacheScope,
    priority: i32,
    fields: CheckedFields,
    permit: Permit,
}

impl Intake {
    /// Checks everything about a request that does not depend on what the engine holds.
    ///
    /// # Errors
    /// [`ServeError`] with what is wrong, or why there is no room.
    pub fn admit(&self, fields: RequestFields) -> Result<Admitted, ServeError> {
        self.try_admit(fields).inspect_err(|error| self.count(error))
    }

    /// Hands the request to the engine. The permit lives as long as the request does.
    ///
    /// # Errors
    /// The engine's refusal.
    pub fn submit(&self, admitted: Admitted, work: Work) -> Result<(RequestHandle, Permit), ServeError> {
        let request = EngineRequest {
            id: admitted.id,
            prompt: admitted.fields.prompt,
            choices: admitted.fields.choices,
            sampling: admitted.fields.sampling,
            stop: admitted.fields.stop,
            scope: admitted.scope,
            priority: admitted.priority,
            deadline: admitted.fields.deadline,
            work,
        };
        match self.engine.submit(request) {
            Ok(handle) => Ok((handle, admitted.permit)),
            Err(error) => {
                let error = ServeError::from(error);
                self.count(&error);
                Err(error)
            }
        }
    }

    /// Counts a request that was refused or given up.
    pub fn count(&self, error: &ServeError) {
        self.metrics.errors.with_label_values(&[error.kind()]).inc();
    }

    fn try_admit(&self, fields: RequestFields) -> Result<Admitted, ServeError> {
        if fields.model != self.model {
            return Err(ServeError::UnknownModel {
                asked: fields.model,
                served: self.model.clone(),
            });
        }
        let id = fields.request_id.clone();
        let scope = self.hasher.scope(&fields.adapter, &fields.cache_salt);
        let priority = fields.priority;
        let fields = fields.check(&self.bounds)?;
        let permit = self.admission.enter()?;
        Ok(Admitted {
            id,
            scope,
            priority,
            fields,
            permit,
        })
    }
}

impl Admitted {
    /// When its choices end.
    #[must_use]
    pub fn stop(&self) -> &StopRules {
        &self.fields.stop
    }

    #[must_use]
    pub fn choices(&self) -> &[ChoiceStart] {
        &self.fields.choices
    }

    /// Tokens that exist before the first sample: the prompt, and what a resumed choice has emitted.
    #[must_use]
    pub fn tokens_before_sample(&self) -> usize {
        let emitted = self
            .fields
            .choices
            .first()
            .map_or(0, |choice| choice.emitted.len());
        self.fields.prompt.len() + emitted
    }

    /// Whether all choices begin with the same tokens, so that one run of the prompt serves them all.
    #[must_use]
    pub fn one_prompt(&self) -> bool {
        self.fields.choices.len() == 1 || self.fields.choices.iter().all(|choice| choice.emitted.is_empty())
    }
}
