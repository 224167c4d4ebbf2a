// SPDX-License-Identifier: GPL-2.0
/*
 * gpunvme: gives one process at a time an NVMe controller: its registers by mmap, and bus
 * addresses for memory. It binds to no drive by itself; an administrator does that with
 * driver_override or new_id.
 *
 * Whenever the process is gone, for whatever reason, the controller is stopped first and the
 * memory let go afterwards.
 */
#include <linux/capability.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/security.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gpunvme.h"

/* Registers (NVM Express base specification 2.0, 3.1.3). */
#define REG_CAP   0x00
#define REG_CC    0x14
#define REG_CSTS  0x1c
#define CC_EN     0x1u
#define CSTS_RDY  0x1u
#define DOORBELLS 0x1000

#define STOP_MS_MAX 10000 /* CAP.TO may ask for two minutes; a close must not take that long */

static bool unsafe_no_iommu;
module_param(unsafe_no_iommu, bool, 0444);
MODULE_PARM_DESC(unsafe_no_iommu, "without an IOMMU, let processes without CAP_SYS_RAWIO open a "
                                  "controller: they can then read and write all memory");

static void free_dev(struct kref *ref)
{
    struct gpunvme_dev *d = container_of(ref, struct gpunvme_dev, ref);

    pci_dev_put(d->pdev);
    kfree(d);
}

/* --- the controller and its DMA --------------------------------------------------------------- */

/* Under d->master. */
static void set_dma(struct gpunvme_dev *d)
{
    u16 command;

    if (d->master_wanted)
        pci_set_master(d->pdev);
    else
        pci_clear_master(d->pdev);
    /* What the function wrote before has arrived when this read has. */
    pci_read_config_word(d->pdev, PCI_COMMAND, &command);
}

static void want_dma(struct gpunvme_dev *d, bool wanted)
{
    spin_lock(&d->master);
    d->master_wanted = wanted && !d->nrevoked;
    set_dma(d);
    spin_unlock(&d->master);
}

void gpunvme_revoke(struct gpunvme_map *map)
{
    struct gpunvme_dev *d = map->dev;

    spin_lock(&d->master);
    if (!map->revoked) {
        map->revoked = true;
        d->nrevoked++;
        d->master_wanted = false;
        set_dma(d);
        if (d->event)
            compat_eventfd_signal(d->event);
    }
    spin_unlock(&d->master);
}

/*
 * Disables the controller, and then its DMA: after this it touches no memory. A controller that
 * doesn't answer loses DMA all the same. False: it isn't disabled, and goes on if it gets DMA again.
 */
static bool stop(struct gpunvme_dev *d)
{
    u32 cc = readl(d->regs + REG_CC), csts = readl(d->regs + REG_CSTS);
    unsigned long ms = 0, most;
    bool disabled = true;

    if (cc != U32_MAX && csts != U32_MAX && (cc & CC_EN || csts & CSTS_RDY)) {
        most = min_t(u64, (readq(d->regs + REG_CAP) >> 24 & 0xff) * 500 + 500, STOP_MS_MAX);
        writel(cc & ~CC_EN, d->regs + REG_CC);
        for (; (csts = readl(d->regs + REG_CSTS)) & CSTS_RDY && csts != U32_MAX; ms++) {
            if (ms >= most) {
                pci_warn(d->pdev, "the controller isn't disabled after %lu ms\n", ms);
                disabled = false;
                break;
            }
            usleep_range(1000, 1500);
        }
    }
    want_dma(d, false);
    return disabled;
}

static bool behind_iommu(struct gpunvme_dev *d)
{
    struct iommu_domain *domain = iommu_get_domain_for_dev(&d->pdev->dev);

    return domain && (domain->type & __IOMMU_DOMAIN_PAGING);
}

/* An IOMMU in lazy mode (iommu.strict=0, the default) forgets only some milliseconds later. */
void gpunvme_flush(struct gpunvme_dev *d)
{
    struct iommu_domain *domain = iommu_get_domain_for_dev(&d->pdev->dev);

    if (behind_iommu(d))
        iommu_flush_iotlb_all(domain);
}

/*
 * Under d->lock: the function has nothing of the opener's any more. The memory itself goes when the
 * file is closed, since unpinning it may wait for others.
 */
static void tear_down(struct gpunvme_file *f)
{
    struct gpunvme_dev *d = f->dev;
    struct eventfd_ctx *event;

    stop(d);
    gpunvme_irq_free(f);
    gpunvme_detach_all(f);
    spin_lock(&d->master);
    event = d->event;
    d->event = NULL;
    spin_unlock(&d->master);
    if (event) {
        compat_eventfd_signal(event);
        eventfd_ctx_put(event);
    }
}

/* --- the character device --------------------------------------------------------------------- */

static void free_file(struct gpunvme_file *f)
{
    if (f->ones[0])
        __free_page(f->ones[0]);
    if (f->ones[1])
        __free_page(f->ones[1]);
    xa_destroy(&f->maps);
    kfree(f);
}

static struct gpunvme_file *new_file(struct gpunvme_dev *d, struct file *filp)
{
    struct gpunvme_file *f = kzalloc(sizeof(*f), GFP_KERNEL_ACCOUNT);
    int i;

    if (!f)
        return NULL;
    f->dev = d;
    f->mapping = filp->f_mapping;
    xa_init_flags(&f->maps, XA_FLAGS_ALLOC1);
    for (i = 0; i < 2; i++) {
        f->ones[i] = alloc_page(GFP_KERNEL_ACCOUNT);
        if (!f->ones[i]) {
            free_file(f);
            return NULL;
        }
        memset(page_address(f->ones[i]), 0xff, PAGE_SIZE);
    }
    return f;
}

/*
 * Without an IOMMU that translates, whoever drives the controller has all memory. An identity
 * domain (iommu=pt) translates nothing.
 */
static int may_open(struct gpunvme_dev *d)
{
    int err;

    if (behind_iommu(d))
        return 0;
    if (!unsafe_no_iommu && !capable(CAP_SYS_RAWIO))
        return -EPERM;
    err = security_locked_down(LOCKDOWN_PCI_ACCESS);
    if (err)
        return err;
    add_taint(TAINT_USER, LOCKDEP_STILL_OK);
    pci_warn(d->pdev, "opened without an IOMMU by %s:%d, which can now reach all memory\n",
             current->comm, task_pid_nr(current));
    return 0;
}

/*
 * Called under misc_mtx, which every open of any misc device takes: so it waits for nothing, and
 * leaves the controller to the first call. Nor can the misc device go away meanwhile.
 */
static int dev_open(struct inode *inode, struct file *filp)
{
    struct gpunvme_dev *d = container_of(filp->private_data, struct gpunvme_dev, misc);
    struct gpunvme_file *f;
    int err = -EBUSY;

    if (!(filp->f_mode & FMODE_WRITE))
        return -EACCES;
    f = new_file(d, filp);
    if (!f)
        return -ENOMEM;
    /* Who has the lock either has the file open or unbinds the function. */
    if (mutex_trylock(&d->lock)) {
        if (!d->file)
            err = may_open(d);
        if (!err)
            d->file = f;
        mutex_unlock(&d->lock);
    }
    if (err) {
        free_file(f);
        return err;
    }
    kref_get(&d->ref);
    filp->private_data = f;
    return 0;
}

static int dev_release(struct inode *inode, struct file *filp)
{
    struct gpunvme_file *f = filp->private_data;
    struct gpunvme_dev *d = f->dev;

    mutex_lock(&d->lock);
    if (!d->removed)
        tear_down(f);
    d->file = NULL;
    mutex_unlock(&d->lock);
    gpunvme_release_all(f);
    free_file(f);
    kref_put(&d->ref, free_dev);
    return 0;
}

/* Firmware or an opener before may have left it running, with queues in others' memory. */
static int make_ready(struct gpunvme_file *f)
{
    struct gpunvme_dev *d = f->dev;

    if (!stop(d) && (pci_try_reset_function(d->pdev) || !stop(d)))
        return -EIO;
    want_dma(d, true);
    f->ready = true;
    return 0;
}

int gpunvme_lock(struct gpunvme_file *f)
{
    int err = 0;

    if (mutex_lock_killable(&f->dev->lock))
        return -EINTR;
    if (f->dev->removed)
        err = -ENODEV;
    else if (!f->ready)
        err = make_ready(f);
    if (err)
        mutex_unlock(&f->dev->lock);
    return err;
}

/*
 * The first access, or the first since removal took the pages away: all are put in at once, since
 * a GPU's driver finds only what is there. Not in mmap, where removal does not see them yet.
 *
 * What was removed reads as all ones, as a removed PCIe function
 * does, so the process learns of it where it expects to, and isn't killed. Stores go into that
 * page too; the registers have one of their own, so that no doorbell changes what CSTS reads as.
 */
static vm_fault_t dev_fault(struct vm_fault *vmf)
{
    struct gpunvme_file *f = vmf->vma->vm_file->private_data;
    struct gpunvme_dev *d = f->dev;
    struct vm_area_struct *vma = vmf->vma;
    unsigned long pgoff = vma->vm_pgoff, at, pfn;
    pgprot_t prot = vma->vm_page_prot;
    vm_fault_t ret = VM_FAULT_NOPAGE;

    down_read(&d->map_lock);
    if (!d->removed)
        prot = pgprot_decrypted(prot); /* AMD's memory encryption knows no registers */
    for (at = vma->vm_start; at < vma->vm_end && ret == VM_FAULT_NOPAGE; at += PAGE_SIZE) {
        if (d->removed)
            pfn = page_to_pfn(f->ones[pgoff != 0]);
        else
            pfn = (d->bar0 >> PAGE_SHIFT) + pgoff;
        ret = vmf_insert_pfn_prot(vma, at, pfn, prot);
        pgoff++;
    }
    up_read(&d->map_lock);
    return ret;
}

static const struct vm_operations_struct vm_ops = {
    .fault = dev_fault,
};

static int dev_mmap(struct file *filp, struct vm_area_struct *vma)
{
    struct gpunvme_file *f = filp->private_data;
    struct gpunvme_dev *d = f->dev;
    unsigned long npages = d->mmap_len >> PAGE_SHIFT, n = vma_pages(vma);
    bool removed;

    if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff >= npages || n > npages - vma->vm_pgoff)
        return -EINVAL;
    down_read(&d->map_lock);
    removed = d->removed;
    up_read(&d->map_lock);
    if (removed)
        return -ENODEV;
    compat_vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
    vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
    vma->vm_ops = &vm_ops;
    return 0;
}

static int info(struct gpunvme_file *f, struct gpunvme_ioc_info *a)
{
    struct gpunvme_dev *d = f->dev;
    int err = gpunvme_lock(f);

    if (err)
        return err;
    *a = (struct gpunvme_ioc_info){.version = GPUNVME_IOC_VERSION,
                                   .bar0_len = d->bar0_len,
                                   .mmap_len = d->mmap_len,
                                   .nvectors = d->nvectors};
    if (behind_iommu(d))
        a->flags |= GPUNVME_IOC_IOMMU;
    if (IS_ENABLED(CONFIG_DMA_SHARED_BUFFER))
        a->flags |= GPUNVME_IOC_DMABUF;
    spin_lock(&d->master);
    a->nrevoked = d->nrevoked;
    spin_unlock(&d->master);
    mutex_unlock(&d->lock);
    return 0;
}

/* The reset restores the command register that it finds, so DMA is off around it. */
static int reset(struct gpunvme_file *f, const struct gpunvme_ioc_reset *a)
{
    struct gpunvme_dev *d = f->dev;
    bool had_dma;
    int err;

    if (a->flags || a->reserved)
        return -EINVAL;
    err = gpunvme_lock(f);
    if (err)
        return err;
    spin_lock(&d->master);
    had_dma = d->master_wanted;
    spin_unlock(&d->master);
    stop(d);
    /* "try": removal holds the device's lock when it waits for ours. */
    err = pci_try_reset_function(d->pdev);
    /* Without the reset, DMA that memory's revocation has ended stays off. */
    want_dma(d, !err || had_dma);
    mutex_unlock(&d->lock);
    return err;
}

static int set_event(struct gpunvme_file *f, const struct gpunvme_ioc_event *a)
{
    struct gpunvme_dev *d = f->dev;
    struct eventfd_ctx *ctx = NULL;
    int err;

    if (a->reserved || a->fd < -1)
        return -EINVAL;
    if (a->fd >= 0) {
        ctx = eventfd_ctx_fdget(a->fd);
        if (IS_ERR(ctx))
            return PTR_ERR(ctx);
    }
    err = gpunvme_lock(f);
    if (!err) {
        spin_lock(&d->master);
        swap(d->event, ctx);
        spin_unlock(&d->master);
        mutex_unlock(&d->lock);
    }
    if (ctx) /* the old one, or one that came too late */
        eventfd_ctx_put(ctx);
    return err;
}

union argument {
    struct gpunvme_ioc_info info;
    struct gpunvme_ioc_map_user user;
    struct gpunvme_ioc_map_dmabuf dmabuf;
    struct gpunvme_ioc_unmap unmap;
    struct gpunvme_ioc_reset reset;
    struct gpunvme_ioc_irq irq;
    struct gpunvme_ioc_event event;
};

static int call(struct gpunvme_file *f, unsigned int cmd, union argument *a)
{
    switch (cmd) {
    case GPUNVME_IOC_INFO:
        return info(f, &a->info);
    case GPUNVME_IOC_MAP_USER:
        return gpunvme_map_user(f, &a->user);
    case GPUNVME_IOC_MAP_DMABUF:
        return gpunvme_map_dmabuf(f, &a->dmabuf);
    case GPUNVME_IOC_UNMAP:
        return a->unmap.reserved ? -EINVAL : gpunvme_unmap(f, a->unmap.handle);
    case GPUNVME_IOC_RESET:
        return reset(f, &a->reset);
    case GPUNVME_IOC_IRQ:
        return gpunvme_irq_set(f, &a->irq);
    case GPUNVME_IOC_EVENT:
        return set_event(f, &a->event);
    default:
        return -ENOTTY;
    }
}

/* The caller does not learn what it got, so it gets nothing. */
static void undo(struct gpunvme_file *f, unsigned int cmd, const union argument *a)
{
    struct gpunvme_ioc_irq none = {0};

    if (cmd == GPUNVME_IOC_MAP_USER)
        gpunvme_unmap(f, a->user.handle);
    else if (cmd == GPUNVME_IOC_MAP_DMABUF)
        gpunvme_unmap(f, a->dmabuf.handle);
    else if (cmd == GPUNVME_IOC_IRQ)
        gpunvme_irq_set(f, &none);
}

static long dev_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
    struct gpunvme_file *f = filp->private_data;
    void __user *user = (void __user *)arg;
    union argument a = {0};
    size_t n = _IOC_SIZE(cmd);
    int err;

    if (READ_ONCE(f->dev->removed))
        return -ENODEV;
    if (n > sizeof(a))
        return -ENOTTY;
    if (_IOC_DIR(cmd) & _IOC_WRITE && copy_from_user(&a, user, n))
        return -EFAULT;
    err = call(f, cmd, &a);
    if (!err && _IOC_DIR(cmd) & _IOC_READ && copy_to_user(user, &a, n)) {
        undo(f, cmd, &a);
        err = -EFAULT;
    }
    return err;
}

static const struct file_operations dev_fops = {
    .owner = THIS_MODULE,
    .open = dev_open,
    .release = dev_release,
    .mmap = dev_mmap,
    .unlocked_ioctl = dev_ioctl,
    .compat_ioctl = compat_ptr_ioctl,
};

/* --- the PCI driver --------------------------------------------------------------------------- */

/*
 * How much of BAR0 can be mapped: up to the MSI-X table, by which a process could make the
 * function write wherever it likes, and never past the page of the pending bits.
 */
static resource_size_t mappable(struct pci_dev *pdev)
{
    static const int at[] = {PCI_MSIX_TABLE, PCI_MSIX_PBA};
    resource_size_t len = pci_resource_len(pdev, 0);
    u32 value;
    int i;

    for (i = 0; pdev->msix_cap && i < 2; i++) {
        pci_read_config_dword(pdev, pdev->msix_cap + at[i], &value);
        if (!(value & PCI_MSIX_TABLE_BIR))
            len = min_t(resource_size_t, len, value & PCI_MSIX_TABLE_OFFSET);
    }
    return round_down(len, PAGE_SIZE);
}

static int check(struct pci_dev *pdev)
{
    if (pdev->class != PCI_CLASS_STORAGE_EXPRESS) {
        pci_err(pdev, "no NVMe controller: class %06x\n", pdev->class);
        return -ENODEV;
    }
    if (!(pci_resource_flags(pdev, 0) & IORESOURCE_MEM) ||
        pci_resource_len(pdev, 0) <= DOORBELLS || !mappable(pdev) ||
        !PAGE_ALIGNED(pci_resource_start(pdev, 0))) {
        pci_err(pdev, "BAR0 is no memory that can be mapped\n");
        return -ENODEV;
    }
    return 0;
}

static int set_up_dma(struct pci_dev *pdev)
{
    int err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));

    if (err)
        return err;
    dma_set_max_seg_size(&pdev->dev, UINT_MAX);
    /* Bounce buffers are copied at moments that only a kernel driver knows. */
    if (dma_max_mapping_size(&pdev->dev) != SIZE_MAX) {
        pci_err(pdev, "DMA goes through bounce buffers (swiotlb)\n");
        return -EOPNOTSUPP;
    }
    return 0;
}

static int start(struct gpunvme_dev *d)
{
    struct pci_dev *pdev = d->pdev;
    int err = pci_enable_device_mem(pdev);

    if (err)
        return err;
    err = set_up_dma(pdev);
    if (err)
        goto disable;
    err = pci_request_mem_regions(pdev, "gpunvme");
    if (err)
        goto disable;
    d->bar0 = pci_resource_start(pdev, 0);
    d->bar0_len = pci_resource_len(pdev, 0);
    d->mmap_len = mappable(pdev);
    d->nvectors = max(pci_msix_vec_count(pdev), 0);
    d->regs = ioremap(d->bar0, DOORBELLS);
    err = d->regs ? 0 : -ENOMEM;
    if (err)
        goto release;
    stop(d);
    return 0;
release:
    pci_release_mem_regions(pdev);
disable:
    pci_disable_device(pdev);
    return err;
}

static void finish(struct gpunvme_dev *d)
{
    iounmap(d->regs);
    pci_release_mem_regions(d->pdev);
    pci_disable_device(d->pdev);
}

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
    struct gpunvme_dev *d;
    int err = check(pdev);

    if (err)
        return err;
    d = kzalloc(sizeof(*d), GFP_KERNEL);
    if (!d)
        return -ENOMEM;
    kref_init(&d->ref);
    mutex_init(&d->lock);
    init_rwsem(&d->map_lock);
    spin_lock_init(&d->master);
    d->pdev = pci_dev_get(pdev);
    snprintf(d->name, sizeof(d->name), "gpunvme-%s", pci_name(pdev));
    snprintf(d->nodename, sizeof(d->nodename), "gpunvme/%s", pci_name(pdev));
    d->misc = (struct miscdevice){.minor = MISC_DYNAMIC_MINOR,
                                  .name = d->name,
                                  .nodename = d->nodename,
                                  .mode = 0600,
                                  .fops = &dev_fops,
                                  .parent = &pdev->dev};
    pci_set_drvdata(pdev, d);
    err = start(d);
    if (err)
        goto put;
    err = misc_register(&d->misc);
    if (!err)
        return 0;
    finish(d);
put:
    pci_set_drvdata(pdev, NULL);
    kref_put(&d->ref, free_dev);
    return err;
}

static void remove(struct pci_dev *pdev)
{
    struct gpunvme_dev *d = pci_get_drvdata(pdev);

    misc_deregister(&d->misc); /* nobody opens it from here on */
    mutex_lock(&d->lock);
    down_write(&d->map_lock);
    d->removed = true;
    up_write(&d->map_lock);
    if (d->file) {
        /* The registers first: the process can't start the controller again. */
        unmap_mapping_range(d->file->mapping, 0, 0, 1);
        tear_down(d->file);
    }
    finish(d);
    mutex_unlock(&d->lock);
    pci_set_drvdata(pdev, NULL);
    kref_put(&d->ref, free_dev);
}

/* A reset by others restores the command register as it was before. */
static void reset_done(struct pci_dev *pdev)
{
    struct gpunvme_dev *d = pci_get_drvdata(pdev);

    if (!d)
        return;
    spin_lock(&d->master);
    set_dma(d);
    spin_unlock(&d->master);
}

static const struct pci_error_handlers error_handlers = {
    .reset_done = reset_done,
};

static struct pci_driver gpunvme_driver = {
    .name = "gpunvme",
    .id_table = NULL, /* only what an administrator names */
    .probe = probe,
    .remove = remove,
    .err_handler = &error_handlers,
};
module_pci_driver(gpunvme_driver);

MODULE_DESCRIPTION("NVMe controllers for programs, with memory of GPUs");
MODULE_AUTHOR("The gpunvme authors");
MODULE_LICENSE("GPL v2");
MODULE_VERSION("1");
