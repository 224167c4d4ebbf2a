// SPDX-License-Identifier: GPL-2.0
/*
 * Interrupts: each MSI-X vector signals an eventfd of the opener.
 */
#include <linux/interrupt.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gpunvme.h"

struct gpunvme_irqs {
    unsigned int nctxs, nrequested;
    struct eventfd_ctx *ctxs[]; /* by vector */
};

static irqreturn_t fired(int number, void *data)
{
    struct eventfd_ctx *ctx = data;

    compat_eventfd_signal(ctx);
    return IRQ_HANDLED;
}

static void free_irqs(struct pci_dev *pdev, struct gpunvme_irqs *irqs)
{
    unsigned int i;

    for (i = 0; i < irqs->nrequested; i++)
        free_irq(pci_irq_vector(pdev, i), irqs->ctxs[i]);
    for (i = 0; i < irqs->nctxs; i++)
        eventfd_ctx_put(irqs->ctxs[i]);
    kvfree(irqs);
}

void gpunvme_irq_free(struct gpunvme_file *f)
{
    if (!f->irqs)
        return;
    free_irqs(f->dev->pdev, f->irqs);
    pci_free_irq_vectors(f->dev->pdev);
    f->irqs = NULL;
}

/* Takes the eventfds; what was taken is in `irqs` also after a failure. */
static int take_fds(struct gpunvme_irqs *irqs, const s32 __user *fds, unsigned int n)
{
    for (; irqs->nctxs < n; irqs->nctxs++) {
        struct eventfd_ctx *ctx;
        s32 fd;

        if (get_user(fd, &fds[irqs->nctxs]))
            return -EFAULT;
        ctx = eventfd_ctx_fdget(fd);
        if (IS_ERR(ctx))
            return PTR_ERR(ctx);
        irqs->ctxs[irqs->nctxs] = ctx;
    }
    return 0;
}

/* Under dev->lock, with f->irqs set. */
static int request(struct gpunvme_file *f, u32 *granted)
{
    struct gpunvme_irqs *irqs = f->irqs;
    struct pci_dev *pdev = f->dev->pdev;
    int i, n = pci_alloc_irq_vectors(pdev, 1, irqs->nctxs, PCI_IRQ_MSIX);

    if (n < 0)
        return n;
    for (i = 0; i < n; i++) {
        int err = request_irq(pci_irq_vector(pdev, i), fired, 0, f->dev->name, irqs->ctxs[i]);

        if (err)
            return err;
        irqs->nrequested++;
    }
    *granted = n;
    return 0;
}

int gpunvme_irq_set(struct gpunvme_file *f, struct gpunvme_ioc_irq *a)
{
    struct gpunvme_dev *d = f->dev;
    struct gpunvme_irqs *irqs;
    int err;

    if (a->granted)
        return -EINVAL;
    if (a->wanted && !d->nvectors)
        return -EOPNOTSUPP;
    if (a->wanted > d->nvectors)
        return -EINVAL;
    irqs = kvzalloc(struct_size(irqs, ctxs, a->wanted), GFP_KERNEL_ACCOUNT);
    if (!irqs)
        return -ENOMEM;
    err = take_fds(irqs, u64_to_user_ptr(a->fds), a->wanted);
    if (!err)
        err = gpunvme_lock(f);
    if (err) {
        free_irqs(d->pdev, irqs);
        return err;
    }
    gpunvme_irq_free(f);
    f->irqs = irqs;
    if (a->wanted)
        err = request(f, &a->granted);
    if (err || !a->wanted)
        gpunvme_irq_free(f);
    mutex_unlock(&d->lock);
    return err;
}
