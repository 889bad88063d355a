// A trained model as files that other programs take.
#pragma once

#include "language_model.hpp"

#include <filesystem>

// Writes to a folder: layer.<i>.safetensors, the FFN of each layer as a layer file (docs/layer_files.md), where its kind
// has one; model.safetensors, all weights by name, with Llama's names where a layer is Llama's, and config.json.
// Throws std::runtime_error, naming the file, where one cannot be written.
void export_model(const language_model& model, const std::filesystem::path& folder);
