// Table of the readers of streams or logs on this node, by source, viewer, bearer and topic. Limits
// the number of readers, and listens to every topic that has a reader. State: the open readers.

import { BrokerError } from "./errors.ts";
import type { Interest } from "./interest.ts";
import type { Topic } from "./model.ts";

export interface Reader {
  /** Identifies the stream or log that is read. */
  readonly source: string;
  readonly topics: ReadonlySet<Topic>;
  /** User on whose behalf the reader reads, or `undefined` if there is no such user. */
  readonly viewer: Viewer | undefined;
  /**
   * Bearer of the signed URL that is used to read. Appends that wait for a missing earlier append
   * share one name. `undefined` for other readers.
   */
  readonly bearer?: string | undefined;
}

interface Viewer {
  readonly uid: string;
}

interface ReaderTablePorts {
  readonly interest: Pick<Interest, "listen" | "unlisten">;
  readonly maxReaders: number;
  /** Maximum number of readers of one viewer. 0 means no limit. */
  readonly maxReadersPerUser: number;
}

/** Fraction of `maxReaders` that all readers with the same `bearer` may use. */
const BEARER_SHARE = 1 / 4;

export class ReaderTable<R extends Reader> {
  readonly #ports: ReaderTablePorts;
  readonly #all = new Set<R>();
  readonly #bySource = new Map<string, Set<R>>();
  readonly #byViewer = new Map<string, Set<R>>();
  readonly #byBearer = new Map<string, Set<R>>();
  readonly #byTopic = new Map<Topic, Set<R>>();

  constructor(ports: ReaderTablePorts) {
    this.#ports = ports;
  }

  get size(): number {
    return this.#all.size;
  }

  all(): readonly R[] {
    return [...this.#all];
  }

  /** Returns the readers of a source. Readers may leave during the iteration. */
  ofSource(source: string): Iterable<R> {
    return this.#bySource.get(source) ?? [];
  }

  ofViewer(uid: string): Iterable<R> {
    return this.#byViewer.get(uid) ?? [];
  }

  onTopic(topic: Topic): Iterable<R> {
    return this.#byTopic.get(topic) ?? [];
  }

  /**
   * Throws `overloaded` if the node, the viewer or the bearer has its maximum number of readers.
   */
  assertRoom({ viewer, bearer = "" }: Partial<Pick<Reader, "viewer" | "bearer">>): void {
    const { maxReaders, maxReadersPerUser } = this.#ports;
    if (this.#all.size >= maxReaders)
      throw new BrokerError("overloaded", {
        message: "Too many readers follow streams on this node; try again later",
      });
    const perBearer = Math.max(1, Math.floor(maxReaders * BEARER_SHARE));
    if ((this.#byBearer.get(bearer)?.size ?? 0) >= perBearer)
      throw new BrokerError("overloaded", {
        message:
          "Too many readers follow a stream with this signed URL on this node; try again later",
      });
    if (viewer === undefined || maxReadersPerUser === 0) return;
    if ((this.#byViewer.get(viewer.uid)?.size ?? 0) >= maxReadersPerUser)
      throw new BrokerError("overloaded", {
        message: "The user follows too many streams on this node; stop following one of them",
      });
  }

  /**
   * Adds a reader. Resolves when the node listens to the reader's topics. If the call rejects, the
   * reader has still been added.
   */
  async enter(reader: R): Promise<void> {
    const { source, topics, viewer, bearer } = reader;
    this.#all.add(reader);
    add(this.#bySource, source, reader);
    if (viewer !== undefined) add(this.#byViewer, viewer.uid, reader);
    if (bearer !== undefined) add(this.#byBearer, bearer, reader);
    for (const topic of topics) add(this.#byTopic, topic, reader);
    await this.#ports.interest.listen(...topics);
  }

  leave(reader: R): void {
    const { source, topics, viewer, bearer } = reader;
    if (!this.#all.delete(reader)) return;
    remove(this.#bySource, source, reader);
    if (viewer !== undefined) remove(this.#byViewer, viewer.uid, reader);
    if (bearer !== undefined) remove(this.#byBearer, bearer, reader);
    for (const topic of topics)
      if (remove(this.#byTopic, topic, reader)) this.#ports.interest.unlisten(topic);
  }
}

function add<R>(index: Map<string, Set<R>>, key: string, reader: R): void {
  const readers = index.get(key) ?? new Set();
  index.set(key, readers.add(reader));
}

/** Removes a reader from an index. Returns true if the index then has no reader under `key`. */
function remove<R>(index: Map<string, Set<R>>, key: string, reader: R): boolean {
  const readers = index.get(key);
  readers?.delete(reader);
  return readers?.size === 0 && index.delete(key);
}
