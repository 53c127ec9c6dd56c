/* C interface of the Rust library behind text.h. Only text.cc includes it.
   Texts are UTF-8 with a length, without a final zero. A function that can fail returns PD_OK and
   fills *out, or returns another code and fills *error with words that may be shown; each goes
   back through its free function. A PdText is immutable and safe from any thread. */
#ifndef PDSERVE_TEXT_RUST_PDSERVE_TEXT_H_
#define PDSERVE_TEXT_RUST_PDSERVE_TEXT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PdText PdText;

/* Lent by the caller for the length of the call; data may be null where size is 0. */
typedef struct {
  const uint8_t* data;
  size_t size;
} PdView;

typedef struct {
  uint8_t* data;
  size_t size;
} PdBytes;

typedef struct {
  uint32_t* data;
  size_t size;
} PdTokens;

/* Lives as long as its PdText. Token i is bytes[offsets[i]] up to bytes[offsets[i + 1]]. */
typedef struct {
  size_t size;
  const uint8_t* bytes;
  const uint32_t* offsets; /* [size + 1] */
  const uint8_t* kinds;    /* [size] of PD_KIND_ */
} PdVocabulary;

enum { PD_OK = 0, PD_INVALID = 1, PD_PANICKED = 2 };
enum { PD_KIND_ORDINARY = 0, PD_KIND_CONTROL = 1, PD_KIND_USER_DEFINED = 2 };
enum { PD_ADD_SPECIAL = 1, PD_PARSE_SPECIAL = 2 };

int32_t pd_text_load(PdView spec, PdText** out, PdBytes* error);
void pd_text_free(PdText* text);
bool pd_text_has_template(const PdText* text);
PdVocabulary pd_text_vocabulary(const PdText* text);
int32_t pd_text_encode(const PdText* text, PdView input, uint32_t flags, PdTokens* out,
                       PdBytes* error);
int32_t pd_text_render_chat(const PdText* text, PdView messages, bool add_generation_prompt,
                            PdBytes* out, PdBytes* error);
int32_t pd_text_encode_chat(const PdText* text, PdView messages, bool add_generation_prompt,
                            PdTokens* out, PdBytes* error);
void pd_bytes_free(PdBytes bytes);
void pd_tokens_free(PdTokens tokens);

#ifdef __cplusplus
}
#endif

#endif /* PDSERVE_TEXT_RUST_PDSERVE_TEXT_H_ */
