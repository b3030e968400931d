// test/fuzz/fuzz_index.cpp: the index of a checkpoint. Its checksum would stop every change at the
// door, so it is put right before the index is read; what is read is written and read once more.
#include "fuzz.h"

#include "../../checkpoint/index.h"

// The text with the checksum that it should have; NULL if it is no JSON object.
static char *put_right(const uint8_t *data, size_t size) {
    json_t *root = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    char *text = NULL;
    if (json_is_object(root)) {
        json_object_del(root, "checksum");
        json_object_set_new(root, "checksum", index_checksum(root));
        text = index_text(root);
    }
    json_decref(root);
    return text;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    CheckpointIndex x, again;
    Failure failure = {""};
    char *text = put_right(data, size);
    if (!text) return 0;
    bool ok = checkpoint_index_read(&x, text, strlen(text), &failure);
    free(text);
    if (!ok) return failure.text[0] ? 0 : (abort(), 0);
    text = checkpoint_index_write(&x);
    if (!checkpoint_index_read(&again, text, strlen(text), &failure)) abort();
    if (memcmp(&x.state, &again.state, sizeof x.state) ||
        memcmp(&x.model, &again.model, sizeof x.model))
        abort();
    checkpoint_index_free(&x);
    checkpoint_index_free(&again);
    free(text);
    return 0;
}
