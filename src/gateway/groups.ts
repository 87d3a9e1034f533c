// The groups of this node: each is subscribed to while a session follows it or is about to. Map: groups by channel id.

import { groupTopic } from "../broker/model.ts";
import type { Cluster } from "../broker/ports.ts";
import { TimeSlice, Turns } from "../lib/time-slice.ts";
import type { Backlog } from "./backlog.ts";
import { Group } from "./group.ts";
import type { Session } from "./session.ts";

/** Joining and leaving of one session hold the event loop so long at a time. */
const SLICE_MS = 2;

export class Groups {
  readonly #byId = new Map<string, Group>();
  readonly #cluster: Pick<Cluster, "listen" | "subscribe" | "unlisten">;
  readonly #turns = new Turns();

  constructor(cluster: Pick<Cluster, "listen" | "subscribe" | "unlisten">) {
    this.#cluster = cluster;
  }

  /** For work on one session that may be about thousands of groups. */
  slice(): TimeSlice {
    return new TimeSlice(SLICE_MS, this.#turns);
  }

  /** Undefined: no session follows it or is about to. */
  get(channelId: string): Group | undefined {
    return this.#byId.get(channelId);
  }

  /** The groups that the session follows, as they are at each step. */
  *followedBy(session: Session): Generator<Group, void> {
    for (const id of session.groups.keys()) {
      const group = this.#byId.get(id);
      if (group !== undefined) yield group;
    }
  }

  /** The session is about to join the group: the topic stays subscribed to, once the caller has asked for that, until `takeOut`. */
  expect(session: Session, channelId: string): Backlog {
    const group = this.#byId.get(channelId) ?? new Group(channelId);
    this.#byId.set(channelId, group);
    return group.expect(session);
  }

  /** Once resolved, what is published in the group reaches the node as it comes. Throws `unavailable`. */
  listen(channelId: string): Promise<void> {
    return this.#cluster.listen(groupTopic(channelId));
  }

  /** The session is about to join these groups: once resolved, what is published there from then on reaches the node. Throws `unavailable`. */
  async subscribe(
    session: Session,
    channelIds: readonly string[],
  ): Promise<void> {
    await this.slice().each(channelIds, async (id) => {
      if (session.ended !== undefined) return;
      this.expect(session, id);
      await this.#cluster.subscribe(groupTopic(id));
    });
  }

  /** The same as it comes, in those of the groups that the session is still about to join. */
  async listenAll(session: Session): Promise<void> {
    await this.slice().each(session.joining ?? [], async (id) => {
      if (session.ended === undefined) await this.listen(id);
    });
  }

  /** Of the group nothing more goes to the session. It may come back, and then has what it had. Harmless when it is not in. */
  takeOut(session: Session, channelId: string): void {
    const group = this.#byId.get(channelId);
    if (group === undefined) return;
    const had = group.hadBy(session);
    if (had !== undefined) session.rememberSeq(channelId, had);
    group.remove(session);
    if (group.isEmpty && this.#byId.delete(channelId))
      this.#cluster.unlisten(groupTopic(channelId));
  }

  /** Takes a session that ended out of all groups. Its connection is closed: that its groups know it a little longer does no harm. */
  async leave(session: Session): Promise<void> {
    const slice = this.slice();
    for (const ids of [session.joining ?? [], session.groups.keys()])
      for (const id of ids) {
        if (slice.isUsedUp()) await slice.rest();
        this.takeOut(session, id);
      }
  }
}
