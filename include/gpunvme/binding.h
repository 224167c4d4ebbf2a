/* SPDX-License-Identifier: BSD-3-Clause
 *
 * For the Python package, which has no C code of its own: what must not be a Python function. A
 * deleter of DLPack or a capsule's destructor may be called without the interpreter's lock, or
 * while an exception is being raised. A Python function that is called then loses the exception,
 * and the interpreter may crash.
 *
 * Threads: any.
 */
#ifndef GPUNVME_BINDING_H
#define GPUNVME_BINDING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of CPython's, by their names there. */
struct gpunvme_python {
    int (*PyGILState_Ensure)(void);
    void (*PyGILState_Release)(int state);
    void (*PyErr_Fetch)(void **type, void **value, void **traceback);
    void (*PyErr_Restore)(void *type, void *value, void *traceback);
    void (*Py_DecRef)(void *object);
    int (*PyCapsule_IsValid)(void *capsule, const char *name);
    void *(*PyCapsule_GetPointer)(void *capsule, const char *name);
};

/* Before any of the others; copied. Another call with the same functions changes nothing. */
void gpunvme_python_set(const struct gpunvme_python *python);

/*
 * The deleter of a DLManagedTensor (DLPack before version 1): drops one reference to the object
 * whose address is the tensor's manager_ctx. `managed` may be part of that object.
 */
void gpunvme_python_delete(void *managed);

/* The destructor of its capsule: deletes the tensor, unless somebody has taken it. */
void gpunvme_python_delete_capsule(void *capsule);

#ifdef __cplusplus
}
#endif
#endif
