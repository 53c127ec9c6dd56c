//! The functions of `pdserve_text.h`. No panic crosses them; every pointer that C passes is null
//! or valid for the length that comes with it.
use crate::{Fallible, Text};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

/// Bytes that the caller lends for the length of the call.
#[repr(C)]
pub struct PdView {
    data: *const u8,
    size: usize,
}

/// Memory of this library: what pd_text_* put there goes back through pd_*_free.
#[repr(C)]
pub struct PdBytes {
    data: *mut u8,
    size: usize,
}

#[repr(C)]
pub struct PdTokens {
    data: *mut u32,
    size: usize,
}

#[repr(C)]
pub struct PdVocabulary {
    size: usize,
    bytes: *const u8,
    offsets: *const u32,
    kinds: *const u8,
}

const OK: i32 = 0;
const INVALID: i32 = 1;
const PANICKED: i32 = 2;

const ADD_SPECIAL: u32 = 1;
const PARSE_SPECIAL: u32 = 2;

impl PdView {
    unsafe fn bytes(&self) -> &[u8] {
        match self.data.is_null() || self.size == 0 {
            true => &[],
            // SAFETY: the caller vouches for `size` readable bytes.
            false => unsafe { std::slice::from_raw_parts(self.data, self.size) },
        }
    }

    unsafe fn text(&self) -> Fallible<&str> {
        // SAFETY: as above.
        std::str::from_utf8(unsafe { self.bytes() })
            .map_err(|e| format!("invalid UTF-8 after {} bytes", e.valid_up_to()))
    }
}

fn give<T>(values: Vec<T>) -> (*mut T, usize) {
    let boxed = values.into_boxed_slice();
    let size = boxed.len();
    (Box::into_raw(boxed).cast(), size)
}

unsafe fn take_back<T>(data: *mut T, size: usize) {
    if !data.is_null() {
        // SAFETY: data and size are what `give` handed out.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(data, size)) });
    }
}

/// Runs `work`, stores its result or its error's words, and says which.
unsafe fn run<T>(out: *mut T, error: *mut PdBytes, work: impl FnOnce() -> Fallible<T>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(work));
    let (code, words) = match result {
        Ok(Ok(value)) => {
            // SAFETY: the caller lends a place for the result.
            unsafe { out.write(value) };
            return OK;
        }
        Ok(Err(words)) => (INVALID, words),
        Err(_) => (PANICKED, "the text library failed on this input".to_string()),
    };
    let (data, size) = give(words.into_bytes());
    // SAFETY: the caller lends a place for the error.
    unsafe { error.write(PdBytes { data, size }) };
    code
}

/// # Safety
/// Pointers as the header says; so for all functions below.
#[no_mangle]
pub unsafe extern "C" fn pd_text_load(
    spec: PdView,
    out: *mut *mut Text,
    error: *mut PdBytes,
) -> i32 {
    unsafe { run(out, error, || Ok(Box::into_raw(Box::new(Text::load(spec.bytes())?)))) }
}

#[no_mangle]
pub unsafe extern "C" fn pd_text_free(text: *mut Text) {
    if !text.is_null() {
        // A panic in a destructor leaves nothing to report to.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(text) })));
    }
}

#[no_mangle]
pub unsafe extern "C" fn pd_text_has_template(text: *const Text) -> bool {
    unsafe { (*text).template.is_some() }
}

/// The arrays live as long as the Text.
#[no_mangle]
pub unsafe extern "C" fn pd_text_vocabulary(text: *const Text) -> PdVocabulary {
    let vocabulary = unsafe { &(*text).tokenizer.vocabulary };
    PdVocabulary {
        size: vocabulary.kinds.len(),
        bytes: vocabulary.bytes.as_ptr(),
        offsets: vocabulary.offsets.as_ptr(),
        kinds: vocabulary.kinds.as_ptr().cast(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn pd_text_encode(
    text: *const Text,
    input: PdView,
    flags: u32,
    out: *mut PdTokens,
    error: *mut PdBytes,
) -> i32 {
    unsafe {
        run(out, error, || {
            let tokenizer = &(*text).tokenizer;
            let (add, parse) = (flags & ADD_SPECIAL != 0, flags & PARSE_SPECIAL != 0);
            let ids = tokenizer.encode(input.text()?, add, parse)?;
            let (data, size) = give(ids);
            Ok(PdTokens { data, size })
        })
    }
}

#[no_mangle]
pub unsafe extern "C" fn pd_text_render_chat(
    text: *const Text,
    messages: PdView,
    add_generation_prompt: bool,
    out: *mut PdBytes,
    error: *mut PdBytes,
) -> i32 {
    unsafe {
        run(out, error, || {
            let rendered = (*text).render_chat(messages.bytes(), add_generation_prompt)?;
            let (data, size) = give(rendered.into_bytes());
            Ok(PdBytes { data, size })
        })
    }
}

#[no_mangle]
pub unsafe extern "C" fn pd_text_encode_chat(
    text: *const Text,
    messages: PdView,
    add_generation_prompt: bool,
    out: *mut PdTokens,
    error: *mut PdBytes,
) -> i32 {
    unsafe {
        run(out, error, || {
            let (data, size) = give((*text).encode_chat(messages.bytes(), add_generation_prompt)?);
            Ok(PdTokens { data, size })
        })
    }
}

#[no_mangle]
pub unsafe extern "C" fn pd_bytes_free(bytes: PdBytes) {
    unsafe { take_back(bytes.data, bytes.size) }
}

#[no_mangle]
pub unsafe extern "C" fn pd_tokens_free(tokens: PdTokens) {
    unsafe { take_back(tokens.data, tokens.size) }
}
