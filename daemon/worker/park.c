/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images whose models left the device to make room: still mapped and pinned, so
 * that coming back is a copy at the bus's speed and nothing else. The broker
 * owns the memory and says when a copy goes; unpinning takes its time, so it is
 * done on the loader's thread.
 */
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "daemon/worker/worker.h"

struct parked {
        struct list link;
        struct eng_image *image;
        dev_t dev;
        ino_t ino;
};

struct forget {
        struct job job; /* first */
        struct worker *worker;
        uint8_t hash[32];
};

void park_keep(struct worker *w, struct eng_image *im) {
        struct parked *p = h_new0(struct parked, 1);

        if (!p) {
                eng_image_close(im);
                return;
        }
        eng_image_file(im, &p->dev, &p->ino);
        p->image = im;
        pthread_mutex_lock(&w->park_lock);
        list_append(&w->parked, &p->link);
        pthread_mutex_unlock(&w->park_lock);
}

struct eng_image *park_take(struct worker *w, int fd) {
        struct eng_image *im = NULL;
        struct stat st;

        if (fstat(fd, &st) < 0)
                return NULL;
        pthread_mutex_lock(&w->park_lock);
        list_foreach(p, &w->parked, struct parked, link)
                if (!im && p->dev == st.st_dev && p->ino == st.st_ino) {
                        im = p->image;
                        list_remove(&p->link);
                        free(p);
                }
        pthread_mutex_unlock(&w->park_lock);
        return im;
}

static void forget(struct job *j) {
        struct forget *f = CONTAINER_OF(j, struct forget, job);
        struct worker *w = f->worker;
        struct list gone;

        list_init(&gone);
        pthread_mutex_lock(&w->park_lock);
        list_foreach(p, &w->parked, struct parked, link)
                if (memcmp(eng_image_hash(p->image), f->hash, 32) == 0) {
                        list_remove(&p->link);
                        list_append(&gone, &p->link);
                }
        pthread_mutex_unlock(&w->park_lock);
        list_foreach(p, &gone, struct parked, link) {
                eng_image_close(p->image);
                atomic_fetch_add(&w->steps, 1); /* a model that closes may wait behind this, and is no hang */
                list_remove(&p->link);
                free(p);
        }
        free(f);
}

void park_forget(struct worker *w, const uint8_t hash[32]) {
        struct forget *f = h_new0(struct forget, 1);

        if (!f)
                return; /* it stays until the worker ends: said nowhere, as nothing is wrong but the memory that is missing already */
        f->worker = w;
        f->job.run = forget;
        memcpy(f->hash, hash, 32);
        list_init(&f->job.link);
        jobs_push(&w->loader, &f->job);
}
