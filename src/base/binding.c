/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Ends of memory that Python has lent to others by DLPack.
 */
#include "gpunvme/binding.h"

/* The end of DLPack's struct DLManagedTensor, behind its tensor. */
struct managed {
    struct {
        void *data;
        int32_t device_type, device_id, ndim;
        uint8_t code, bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } tensor;
    void *context;
    void (*deleter)(void *managed);
};

static struct gpunvme_python python;

void gpunvme_python_set(const struct gpunvme_python *functions)
{
    python = *functions;
}

void gpunvme_python_delete(void *managed)
{
    void *object = ((struct managed *)managed)->context, *type, *value, *traceback;
    int state = python.PyGILState_Ensure();

    python.PyErr_Fetch(&type, &value, &traceback);
    python.Py_DecRef(object);
    python.PyErr_Restore(type, value, traceback);
    python.PyGILState_Release(state);
}

void gpunvme_python_delete_capsule(void *capsule)
{
    struct managed *managed;

    /* A consumer renames the capsule that it takes. */
    if (!python.PyCapsule_IsValid(capsule, "dltensor"))
        return;
    managed = python.PyCapsule_GetPointer(capsule, "dltensor");
    if (managed->deleter)
        managed->deleter(managed);
}
