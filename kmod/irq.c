// SPDX-License-Identifier: GPL-2.0
/*
 * Interrupts: each MSI-X vector signals an eventfd of the opener.
 */
#include <linux/interrupt.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gpunvme.h"

struct gpunvme_irq {
    struct eventfd_ctx *ctx;
    bool requested;
};

static irqreturn_t fired(int number, void *data)
{
    struct gpunvme_irq *irq = data;

    compat_eventfd_signal(irq->ctx);
    return IRQ_HANDLED;
}

void gpunvme_irq_free(struct gpunvme_file *f)
{
    struct pci_dev *pdev = f->dev->pdev;
    unsigned int i;

    if (!f->irqs)
        return;
    for (i = 0; i < f->nirqs; i++) {
        if (f->irqs[i].requested)
            free_irq(pci_irq_vector(pdev, i), &f->irqs[i]);
        if (f->irqs[i].ctx)
            eventfd_ctx_put(f->irqs[i].ctx);
    }
    pci_free_irq_vectors(pdev);
    kfree(f->irqs);
    f->irqs = NULL;
    f->nirqs = 0;
}

/* Takes the eventfds of all vectors; what was taken is in f->irqs, for gpunvme_irq_free(). */
static int take_fds(struct gpunvme_file *f, const s32 __user *fds)
{
    unsigned int i;

    for (i = 0; i < f->nirqs; i++) {
        struct eventfd_ctx *ctx;
        s32 fd;

        if (get_user(fd, &fds[i]))
            return -EFAULT;
        ctx = eventfd_ctx_fdget(fd);
        if (IS_ERR(ctx))
            return PTR_ERR(ctx);
        f->irqs[i].ctx = ctx;
    }
    return 0;
}

static int request(struct gpunvme_file *f, unsigned int granted)
{
    unsigned int i;

    for (i = 0; i < granted; i++) {
        int err = request_irq(pci_irq_vector(f->dev->pdev, i), fired, 0, f->dev->name,
                              &f->irqs[i]);

        if (err)
            return err;
        f->irqs[i].requested = true;
    }
    return 0;
}

long gpunvme_irq_set(struct gpunvme_file *f, void __user *arg)
{
    struct pci_dev *pdev = f->dev->pdev;
    struct gpunvme_ioc_irq a;
    int most = pci_msix_vec_count(pdev);
    int granted;
    long err;

    if (copy_from_user(&a, arg, sizeof(a)))
        return -EFAULT;
    if (a.granted)
        return -EINVAL;
    if (a.wanted && most <= 0)
        return -EOPNOTSUPP;
    if (a.wanted && a.wanted > (unsigned int)most)
        return -EINVAL;
    gpunvme_irq_free(f);
    if (!a.wanted)
        return 0;
    f->irqs = kcalloc(a.wanted, sizeof(*f->irqs), GFP_KERNEL_ACCOUNT);
    if (!f->irqs)
        return -ENOMEM;
    f->nirqs = a.wanted;
    err = take_fds(f, u64_to_user_ptr(a.fds));
    if (!err) {
        granted = pci_alloc_irq_vectors(pdev, 1, a.wanted, PCI_IRQ_MSIX);
        err = granted < 0 ? granted : request(f, granted);
    }
    if (!err) {
        a.granted = granted;
        if (copy_to_user(arg, &a, sizeof(a)))
            err = -EFAULT;
    }
    if (err)
        gpunvme_irq_free(f);
    return err;
}
