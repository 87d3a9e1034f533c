// A node of a cluster on Redis: topics, session directory and registry put together. State: who listens to this node's events; the parts hold
// theirs. The link to Redis is shared with the store: whoever made it closes it, after this.

import type { CloseReason } from "../../broker/errors.ts";
import type { Presence, SessionRecord, Topic } from "../../broker/model.ts";
import type {
  Cluster,
  ClusterEvent,
  NodeInfo,
  Registration,
} from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import { type AboutNode, createSelfPortrait } from "../about-node.ts";
import { LocalSessions } from "./local-sessions.ts";
import { Registry, type RegistryParts } from "./registry.ts";
import {
  createSessionSide,
  type SessionSide,
  type SessionSideParts,
} from "./sessions.ts";

/** The topics' side of a node (topics.ts). */
export interface ClusterTopics
  extends Pick<
    Cluster,
    | "publish"
    | "announce"
    | "onEvent"
    | "listen"
    | "unlisten"
    | "barrier"
    | "start"
    | "close"
    | "ping"
  > {
  /** Hears of each time that events may have been missed, once they are heard again and what the store has of them was told. */
  onResubscribed(listener: () => void): void;
}

export interface RedisClusterParts
  extends Pick<SessionSideParts, "judge" | "onProblem">,
    Pick<
      RegistryParts,
      "heartbeatMs" | "deadAfterMs" | "asksTime" | "onAnotherLife"
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
  readonly #sessions: SessionSide;
  #listener: (event: ClusterEvent) => void = () => {};

  constructor(parts: RedisClusterParts) {
    const { link, topics, about, onProblem, heartbeatMs } = parts;
    const { recheckMs = RECHECK_MS, judge } = parts;
    const local = new LocalSessions(link, onProblem);
    const portrait = createSelfPortrait(about, () => local.size);
    const { nodeId } = about;
    const registry = new Registry({ ...parts, nodeId, portrait });
    this.nodeId = nodeId;
    this.#link = link;
    this.#topics = topics;
    this.#registry = registry;
    this.#sessions = createSessionSide({
      ...{ link, registry, local, onProblem, judge, heartbeatMs, recheckMs },
      publish: (event) => topics.publish(event),
      tell: (event) => this.#listener(event),
    });
    const { restorer } = this.#sessions;
    link.onChange((isUp) => {
      if (isUp) restorer.want();
    });
    topics.onResubscribed(() => restorer.want());
  }

  onEvent(listener: (event: ClusterEvent) => void): void {
    this.#listener = listener;
    const { restorer } = this.#sessions;
    this.#topics.onEvent((event) => {
      if (event.kind === "credential") restorer.doubt(event.uid);
      listener(event);
    });
  }

  /** Joins the cluster. Throws an Error with a sentence for the operator when another process lives under this node's id. */
  async start(): Promise<void> {
    await this.#link.start();
    await this.#topics.start();
    await this.#registry.start();
  }

  /** Leaves the cluster; sessions that are still open count as offline from now on. Safe to call twice. */
  async close(): Promise<void> {
    await this.#sessions.close();
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
    return this.#topics.listen(topic);
  }

  unlisten(topic: Topic): void {
    this.#topics.unlisten(topic);
  }

  barrier(): Promise<void> {
    return this.#topics.barrier();
  }

  register(...asked: Parameters<Cluster["register"]>): Promise<Registration> {
    return this.#sessions.directory.register(...asked);
  }

  unregister(session: SessionRecord): Promise<void> {
    return this.#sessions.directory.unregister(session);
  }

  end(...asked: Parameters<Cluster["end"]>): Promise<void> {
    return this.#sessions.directory.end(...asked);
  }

  endedBy(
    ...asked: Parameters<Cluster["endedBy"]>
  ): Promise<CloseReason | undefined> {
    return this.#sessions.directory.endedBy(...asked);
  }

  sessionsOf(uid: string): Promise<readonly SessionRecord[]> {
    return this.#sessions.directory.sessionsOf(uid);
  }

  presence(uids: readonly string[]): Promise<readonly Presence[]> {
    return this.#sessions.directory.presence(uids);
  }

  async nodes(): Promise<readonly NodeInfo[]> {
    return this.#registry.nodes();
  }
}
