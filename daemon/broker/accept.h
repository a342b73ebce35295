/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Takes connections from the listening socket. Without a free descriptor (EMFILE,
 * ENFILE, no memory) they wait in its backlog: the socket stays readable, so it
 * is not polled for a moment. The log has one line when that begins and one when
 * it ends.
 */

struct server;

void accept_start(struct server *s);
/* Once a second: a socket file that was deleted is made again; what prevents it is logged once. */
void accept_tick(struct server *s);
void accept_stop(struct server *s);
