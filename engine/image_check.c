/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a model can be opened, before its weights are read: tens of gigabytes
 * are not copied to find out then that the architecture is unknown or a tensor
 * is missing. The description is made from an image that has a header and rows
 * only; where its tensors would be, pages read as zeros.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "engine/model.h"
#include "engine/text/tokenizer.h"

static int check_text(const struct gguf *g, const struct eng_desc *d, struct h_error *err) {
        struct tok *t = NULL;
        int r = tok_open(g, &t, err);

        if (r < 0)
                return r == -EHEARTH ? r : h_error_from_errno(err, r, "opening the tokenizer");
        r = model_check_vocab(d, t, err);
        tok_free(t);
        return r;
}

static int check_image(struct eng_image *im, enum eng_backend backend, const struct k_ops *ops, struct h_error *err) {
        struct eng_device dev = { .o.backend = backend };
        struct tensors *t = NULL;
        struct eng_desc *d = NULL;
        int r;

        r = tensors_open(&dev, im, &(struct tensors_how){ .dry = true }, &t, err);
        if (r >= 0)
                r = arch_describe(im->g, t, &d, err);
        if (r >= 0)
                r = model_check_backend(d, ops, err);
        if (r >= 0)
                r = check_text(im->g, d, err);
        arch_desc_free(d);
        tensors_close(t);
        return r;
}

static int check_plan(const struct image_source *s, const struct image_plan *p, struct h_error *err) {
        _cleanup_(freep) struct image_row *rows = h_new0(struct image_row, p->header.n_tensors);
        struct eng_image im = { .map_bytes = p->header.bytes, .header = &p->header, .rows = rows, .g = s->part[0].g };
        void *zeros;
        int r;

        if (!rows)
                return -ENOMEM;
        for (uint32_t i = 0; i < p->header.n_tensors; i++)
                rows[i] = p->tensor[p->by_name[i]].row;
        /* Room for addresses: it takes no memory. */
        zeros = mmap(NULL, im.map_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (zeros == MAP_FAILED)
                return -errno;
        im.map = zeros;
        r = check_image(&im, (enum eng_backend)p->header.backend, p->ops, err);
        munmap(zeros, im.map_bytes);
        return r;
}

int eng_image_check(const struct eng_source *src, const struct eng_image_options *o, uint64_t *ret_bytes, struct h_error *err) {
        struct image_source s = { 0 };
        struct image_plan p = { 0 };
        int r;

        r = image_source_open(src, &s, err);
        if (r >= 0)
                r = image_plan_make(&s, o->backend, &p, err);
        if (r >= 0) {
                r = check_plan(&s, &p, err);
                if (r < 0 && r != -EHEARTH)
                        r = h_error_from_errno(err, r, "looking at a model");
                else if (r < 0)
                        h_error_prefix(err, "%s", src->name ? src->name : "model");
        }
        if (r >= 0 && ret_bytes)
                *ret_bytes = p.header.bytes;
        image_plan_free(&p);
        image_source_close(&s);
        return r;
}
