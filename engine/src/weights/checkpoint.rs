//! The files of a checkpoint and the tensors in them.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use baton_kernels::MappedFile;
use safetensors::{SafeTensors, tensor::TensorInfo};
use serde::Deserialize;

use super::{Tensor, TensorDtype};
use crate::model::ModelError;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The open files of a checkpoint. Tensors borrow from it; nothing is read before it is asked for.
pub struct Checkpoint {
    dir: PathBuf,
    files: Vec<File>,
    /// Which file has the tensor.
    places: HashMap<String, usize>,
}

struct File {
    path: PathBuf,
    map: MappedFile,
    /// Where the tensors' data starts.
    data: usize,
    tensors: HashMap<String, TensorInfo>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Checkpoint {
    /// Opens `model.safetensors`, or else the shards that `model.safetensors.index.json` names, and checks that each
    /// file is whole.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Corrupt`], [`ModelError::MissingShard`], [`ModelError::MissingTensor`].
    pub fn open(model_dir: &Path) -> Result<Self, ModelError> {
        let single = model_dir.join(SINGLE);
        if !single.exists() && model_dir.join(INDEX).exists() {
            return Self::open_sharded(model_dir);
        }
        let file = File::open(single)?;
        let places = file.tensors.keys().map(|name| (name.clone(), 0)).collect();
        Ok(Self {
            dir: model_dir.to_owned(),
            files: vec![file],
            places,
        })
    }

    fn open_sharded(model_dir: &Path) -> Result<Self, ModelError> {
        let path = model_dir.join(INDEX);
        let text = fs::read_to_string(&path).map_err(|source| ModelError::Io {
            path: path.clone(),
            source,
        })?;
        let index: Index = serde_json::from_str(&text).map_err(|source| ModelError::Corrupt {
            path: path.clone(),
            reason: source.to_string(),
        })?;

        let mut shards: Vec<&String> = index.weight_map.values().collect();
        shards.sort_unstable();
        shards.dedup();
        let mut files = Vec::with_capacity(shards.len());
        for shard in &shards {
            let file = model_dir.join(shard);
            // A shard lies beside its index: a name that leads elsewhere is not one.
            if Path::new(shard).file_name() != Some(shard.as_ref()) || !file.exists() {
                return Err(ModelError::MissingShard {
                    path,
                    shard: (*shard).clone(),
                });
            }
            files.push(File::open(file)?);
        }

        let mut places = HashMap::with_capacity(index.weight_map.len());
        for (name, shard) in &index.weight_map {
            let place = shards.partition_point(|other| *other < shard);
            let file = &files[place];
            if !file.tensors.contains_key(name) {
                return Err(ModelError::MissingTensor {
                    path: file.path.clone(),
                    name: name.clone(),
                });
            }
            places.insert(name.clone(), place);
        }
        Ok(Self {
            dir: model_dir.to_owned(),
            files,
            places,
        })
    }

    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The tensor of that name, which must have that shape.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`], [`ModelError::WrongDtype`].
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, ModelError> {
        let place = self.places.get(name).ok_or_else(|| ModelError::MissingTensor {
            path: self.dir.clone(),
            name: name.to_owned(),
        })?;
        let file = &self.files[*place];
        let info = &file.tensors[name];
        if info.shape != shape {
            return Err(ModelError::WrongShape {
                name: name.to_owned(),
                found: info.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        let dtype = TensorDtype::from_safetensors(info.dtype).ok_or_else(|| ModelError::WrongDtype {
            name: name.to_owned(),
            found: format!("{:?}", info.dtype),
        })?;
        let (start, end) = info.data_offsets;
        Ok(Tensor::new(dtype, &file.map[file.data + start..file.data + end]))
    }

    /// The files' bytes, in the order of their names.
    pub(super) fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.files.iter().map(|file| &file.map[..])
    }

    /// Every tensor's name, type and shape, sorted by name.
    pub(super) fn contents(&self) -> Vec<(&str, &TensorInfo)> {
        let mut contents: Vec<_> = self
            .places
            .iter()
            .map(|(name, place)| (name.as_str(), &self.files[*place].tensors[name]))
            .collect();
        contents.sort_unstable_by_key(|(name, _)| *name);
        contents
    }
}

impl File {
    fn open(path: PathBuf) -> Result<Self, ModelError> {
        let map = MappedFile::open(&path).map_err(|source| ModelError::Io {
            path: path.clone(),
            source,
        })?;
        // Checks that the tensors fill the file exactly: a truncated download ends here.
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|reason| ModelError::Corrupt {
            path: path.clone(),
            reason: reason.to_string(),
        })?;
        /// The file starts with the header's length, 8 bytes.
        const LENGTH_BYTES: usize = 8;
        let data = LENGTH_BYTES + header;
        let tensors = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, info.clone()))
            .collect();
        Ok(Self {
            path,
            map,
            data,
            tensors,
        })
    }
}
