/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a backend by the caller's options. Never another device than the one asked for. */
#include "engine/device.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/image.h"
#include "kernels/mixed.h"

static const struct cpu_variant {
        const char *name, *needs;
        enum k_isa isa;
} cpu_variants[] = {
        { "auto", "", K_ISA_AUTO }, { "portable", "", K_ISA_SCALAR }, { "scalar", "", K_ISA_SCALAR },
        { "avx2", "AVX2, FMA and F16C", K_ISA_AVX2 },
        { "avx512", "AVX-512 F, BW, VL, DQ and VNNI", K_ISA_AVX512 },
        { "amx", "AVX-512 with VNNI, AMX tiles of bytes and leave to use them", K_ISA_AMX },
};

static const struct cpu_variant *cpu_variant(const char *name, struct h_error *err) {
        for (size_t i = 0; i < ELEMENTSOF(cpu_variants); i++)
                if (strcmp(name, cpu_variants[i].name) == 0)
                        return &cpu_variants[i];
        h_error_set(err, HEARTH_E_bad_request, "variant \"%s\" is unknown; known: auto, portable, scalar, avx2, avx512, amx", name);
        return NULL;
}

static int open_cpu(const struct eng_device_options *o, struct k_dev **ret, struct h_error *err) {
        const struct cpu_variant *v = cpu_variant(o->variant ? o->variant : "auto", err);
        struct k_cpu_options k = { .threads = o->threads, .exact = o->exact };
        int r;

        if (!v)
                return -EINVAL;
        k.isa = v->isa;
        r = k_cpu_open(&k, ret);
        if (r == -ENOTSUP || r == -EOPNOTSUPP)
                return h_error_set(err, HEARTH_E_no_device, "this processor, its kernel or this build lacks what variant \"%s\" needs (%s); "
                                   "\"auto\" takes the best that there is", v->name, v->needs);
        return r < 0 ? h_error_from_errno(err, r, "opening the CPU backend") : 0;
}

static int open_cuda(const struct eng_device_options *o, struct k_dev **ret, struct h_error *err) {
        struct k_cuda_options k = { .ordinal = o->ordinal, .vram_budget = o->vram_budget, .exact = o->exact,
                                      .host_launches = o->host_launches };
        char why[256] = "";
        int r;

        if (o->variant && strcmp(o->variant, "portable") == 0)
                k.variant = K_CUDA_VARIANT_PORTABLE;
        else if (o->variant && strcmp(o->variant, "auto") != 0)
                return h_error_set(err, HEARTH_E_bad_request, "variant \"%s\" is unknown for CUDA; known: auto, portable",
                                   o->variant);
        r = k_cuda_open(&k, ret, why);
        if (r == -ENOSYS)
                return h_error_set(err, HEARTH_E_no_device, "this build has no CUDA backend");
        return r < 0 ? h_error_set(err, HEARTH_E_no_device, "CUDA device %d: %s", o->ordinal,
                                   why[0] ? why : strerror(-r)) : 0;
}

int eng_device_open(const struct eng_device_options *o, struct eng_device **ret, struct h_error *err) {
        struct eng_device *d = h_new0(struct eng_device, 1);
        int r;

        if (!d)
                return h_error_from_errno(err, -ENOMEM, "opening a device");
        d->o = *o;
        d->o.variant = NULL;
        switch (o->backend) {
        case ENG_CPU: r = open_cpu(o, &d->k, err); break;
        case ENG_CUDA: r = open_cuda(o, &d->k, err); break;
        default: r = h_error_set(err, HEARTH_E_bad_request, "unknown backend %d", (int)o->backend);
        }
        if (r < 0) {
                free(d);
                return r;
        }
        *ret = d;
        return 0;
}

struct eng_device *eng_device_close(struct eng_device *d) {
        if (d) {
                d->k->ops->close(d->k);
                free(d->profile);
                free(d);
        }
        return NULL;
}

const char *eng_device_describe(struct eng_device *d) {
        return d->k->ops->describe(d->k);
}

const char *eng_device_host(struct eng_device *d) {
        return d->k->mixed ? k_mixed_host(d->k) : "";
}

uint64_t eng_device_launches(struct eng_device *d, const char **ret_why) {
        *ret_why = "";
        return d->k->ops->graph_launches ? d->k->ops->graph_launches(d->k, ret_why) : 0;
}

int eng_device_memory(struct eng_device *d, uint64_t *ret_total, uint64_t *ret_free) {
        struct k_mem_info info;
        int r;

        if (d->o.backend == ENG_CPU)
                return host_memory(ret_total, ret_free);
        r = d->k->ops->mem_info(d->k, &info);
        if (r < 0)
                return r;
        *ret_total = info.total;
        *ret_free = info.free_now;
        return 0;
}

int eng_device_budget(struct eng_device *d, uint64_t *ret) {
        struct k_mem_info info = { 0 };
        int r = d->k->ops->mem_info(d->k, &info);

        if (r < 0)
                return r;
        *ret = info.budget ? info.budget : info.total;
        return 0;
}

const char *eng_device_lost(struct eng_device *d) {
        return d->k->ops->lost ? d->k->ops->lost(d->k) : NULL;
}

const char *eng_device_where(struct eng_device *d, char buf[64]) {
        return d->k->ops->where ? d->k->ops->where(d->k, buf) : "";
}
