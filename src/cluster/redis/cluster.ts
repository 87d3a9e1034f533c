// A node of a cluster on Redis: topics, session directory and registry put together. State: who listens to this node's events, the presence topics it
// listens to; the parts hold theirs. The link to Redis is shared with the store: whoever made it closes it, after this.

import type { CloseReason } from "../../broker/errors.ts";
import {
  type Presence,
  presenceTopic,
  type SessionRecord,
  type Topic,
} from "../../broker/model.ts";
import type {
  Cluster,
  ClusterEvent,
  GroupJudge,
  NodeInfo,
  Registration,
} from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import { type AboutNode, createNodeDescription } from "../about-node.ts";
import { RedisDirectory } from "./directory.ts";
import { LocalSessions } from "./local-sessions.ts";
import { Registry, type RegistryParts } from "./registry.ts";
import { Restorer, type RestorerParts } from "./restore.ts";
import { DirectorySteps } from "./steps.ts";
import type { Resync } from "./topics-parts.ts";

/** The topics' side of a node (topics.ts). */
export interface ClusterTopics
  extends Pick<
    Cluster,
    | "publish"
    | "announce"
    | "listen"
    | "unlisten"
    | "barrier"
    | "recovery"
    | "start"
    | "close"
    | "ping"
  > {
  /** Who receives this node's events, and judges who may see what it missed. */
  onEvent(listener: (event: ClusterEvent) => void, resync: Resync): void;
}

export interface RedisClusterParts
  extends Pick<RestorerParts, "judge" | "onProblem">,
    Pick<
      RegistryParts,
      "heartbeatMs" | "deadAfterMs" | "asksTime" | "onNewIncarnation"
    > {
  readonly link: RedisLink;
  readonly topics: ClusterTopics;
  readonly about: AboutNode;
  /** In about so long the directory is compared with every session of the node; a minute, unless told otherwise. */
  readonly recheckMs?: number;
}

const RECHECK_MS = 60_000;

export class RedisCluster implements Cluster {
  readonly nodeId: string;
  readonly #link: RedisLink;
  readonly #topics: ClusterTopics;
  readonly #registry: Registry;
  readonly #directory: RedisDirectory;
  readonly #restorer: Restorer;
  /** Users whose presence this node listens to. */
  readonly #watched = new Set<string>();
  #listener: (event: ClusterEvent) => void = () => {};

  constructor(parts: RedisClusterParts) {
    const { link, topics, about } = parts;
    const { nodeId } = about;
    const local = new LocalSessions();
    const describe = createNodeDescription(about, () => local.size);
    const registry = new Registry({ ...parts, nodeId, describe });
    const steps = new DirectorySteps(link);
    const restorer = new Restorer({
      ...{ recheckMs: RECHECK_MS, ...parts, steps, registry, local },
      tell: (event) => this.#listener(event),
    });
    this.nodeId = nodeId;
    this.#link = link;
    this.#topics = topics;
    this.#registry = registry;
    this.#restorer = restorer;
    this.#directory = new RedisDirectory({ steps, registry, local, restorer });
    registry.listener({
      onBeat(isNew) {
        if (isNew) restorer.want();
        else restorer.beat();
      },
      onDeath: () => this.#doubtPresence(),
    });
    link.onChange((isUp) => {
      if (isUp) restorer.want();
    });
  }

  onEvent(
    listener: (event: ClusterEvent) => void,
    judgeGroup: GroupJudge,
  ): void {
    this.#listener = listener;
    const restorer = this.#restorer;
    this.#topics.onEvent(
      (event) => {
        if (event.kind === "credential") restorer.doubt(event.uid);
        listener(event);
      },
      {
        silentSinceMs: () => this.#registry.silentSinceMs(),
        judgeUsers: async (uids) => {
          for (const uid of uids) listener({ kind: "credential", uid }); // its event may be lost
          await restorer.judgeUsers(uids);
        },
        judgeGroup,
      },
    );
  }

  /** Joins the cluster. Throws an Error with a sentence for the operator when another process lives under this node's id. */
  async start(): Promise<void> {
    await this.#link.start();
    await this.#topics.start();
    await this.#registry.start();
  }

  /** Leaves the cluster; sessions that are still open count as offline from now on. Safe to call twice. */
  async close(): Promise<void> {
    await this.#restorer.idle();
    await this.#registry.close();
    await this.#topics.close();
  }

  async ping(): Promise<void> {
    this.#registry.assertBeating();
    await this.#topics.ping();
    await this.#link.ping();
  }

  publish(event: ClusterEvent): void {
    this.#topics.publish(event);
  }

  announce(events: readonly ClusterEvent[]): Promise<void> {
    return this.#topics.announce(events);
  }

  listen(topic: Topic): Promise<void> {
    const uid = topic.slice(2);
    if (topic === presenceTopic(uid)) this.#watched.add(uid);
    return this.#topics.listen(topic);
  }

  unlisten(topic: Topic): void {
    const uid = topic.slice(2);
    if (topic === presenceTopic(uid)) this.#watched.delete(uid);
    this.#topics.unlisten(topic);
  }

  barrier(): Promise<void> {
    return this.#topics.barrier();
  }

  recovery(
    ...asked: Parameters<Cluster["recovery"]>
  ): Promise<void> | undefined {
    return this.#topics.recovery(...asked);
  }

  register(...asked: Parameters<Cluster["register"]>): Promise<Registration> {
    return this.#directory.register(...asked);
  }

  unregister(session: SessionRecord): Promise<void> {
    return this.#directory.unregister(session);
  }

  end(...asked: Parameters<Cluster["end"]>): Promise<void> {
    return this.#directory.end(...asked);
  }

  endedBy(
    ...asked: Parameters<Cluster["endedBy"]>
  ): Promise<CloseReason | undefined> {
    return this.#directory.endedBy(...asked);
  }

  sessionsOf(uid: string): Promise<readonly SessionRecord[]> {
    return this.#directory.sessionsOf(uid);
  }

  presence(uids: readonly string[]): Promise<readonly Presence[]> {
    return this.#directory.presence(uids);
  }

  async nodes(): Promise<readonly NodeInfo[]> {
    return this.#registry.nodes();
  }

  /** A node died: nobody else says which users it served, so whoever is watched here may be offline now. */
  #doubtPresence(): void {
    for (const uid of this.#watched) this.#listener({ kind: "presence", uid });
  }
}
