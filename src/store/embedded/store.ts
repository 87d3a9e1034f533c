// The embedded driver of the Store port: one process, one folder. Owns the life cycle; everything else is the engine's, which exists from
// start to close. Must never let an error through that is not a BrokerError.

import { BrokerError } from "../../broker/errors.ts";
import type { Answer, Store } from "../../broker/ports.ts";
import { type EmbeddedOptions, type Engine, openEngine } from "./engine.ts";

export type { EmbeddedOptions } from "./engine.ts";

/** Figures for metrics. Counters start at 0 with each start. */
export interface EmbeddedStats {
  /** Messages in the journal and not yet in the database. */
  readonly tailRecords: number;
  readonly tailBytes: number;
  readonly journalBytes: number;
  readonly checkpoints: number;
  /** Messages accepted, stored or not. */
  readonly appends: number;
  /** Retries answered with the first message. */
  readonly duplicates: number;
}

export interface EmbeddedStore extends Store {
  /** All zero while the store is not running. */
  stats(): EmbeddedStats;
  /** Removes everything expired now; resolves to the number of messages. The store does it by itself every `sweepIntervalMs`. */
  sweep(): Promise<number>;
  /** Moves what is journalled into the database now. The store does it by itself every `checkpointMs`. */
  checkpoint(): Promise<void>;
}

type Status = "new" | "starting" | "running" | "closing" | "closed";

/** Nothing is opened before `start`. */
export function createEmbeddedStore(options: EmbeddedOptions): EmbeddedStore {
  let status: Status = "new";
  let engine: Engine | undefined;
  let change: Promise<void> = Promise.resolve();

  const notRunning = () =>
    new BrokerError("unavailable", { message: `The store is ${status}` });

  async function use<T>(step: (engine: Engine) => T | Promise<T>): Promise<T> {
    if (status !== "running" || engine === undefined) throw notRunning();
    try {
      return await step(engine);
    } catch (error) {
      throw toBrokerError(error);
    }
  }

  /** For what is asked with every message: no promise where the answer is at hand. */
  function useNow<T>(step: (engine: Engine) => Answer<T>): Answer<T> {
    if (status !== "running" || engine === undefined)
      return Promise.reject(notRunning());
    try {
      return step(engine);
    } catch (error) {
      return Promise.reject(toBrokerError(error));
    }
  }

  async function open(): Promise<void> {
    try {
      engine = await openEngine(options);
      status = "running";
    } catch (error) {
      status = "closed";
      throw toBrokerError(error);
    }
  }

  async function shut(): Promise<void> {
    const closing = engine;
    engine = undefined;
    try {
      await closing?.close();
    } finally {
      status = "closed";
    }
  }

  return {
    start() {
      if (status === "closing") return Promise.reject(notRunning());
      if (status === "new" || status === "closed") {
        status = "starting";
        change = open();
      }
      return change;
    },
    async close() {
      if (status === "starting") await change.catch(() => undefined); // start's caller hears of it
      if (status === "running") {
        status = "closing";
        change = shut();
      }
      if (status === "closing") await change;
      else status = "closed";
    },
    ping: () => use(ping),

    device: (uid, flag) => use((e) => e.users.device(uid, flag)),
    putDevice: (device) => use((e) => e.users.putDevice(device)),

    channel: (channel) => use((e) => e.channels.channel(channel)),
    createChannel: (info, subscribers) =>
      use((e) => e.channels.createChannel(info, subscribers)),
    updateChannel: (channel, flags) =>
      use((e) => e.channels.updateChannel(channel, flags)),
    addSubscribers: (channel, uids, how) =>
      use((e) => e.channels.addSubscribers(channel, uids, how)),
    removeSubscribers: (channel, uids, membership) =>
      use((e) => e.channels.removeSubscribers(channel, uids, membership)),
    groupFacts: (channelId, uid) =>
      useNow((e) => e.channels.groupFacts(channelId, uid)),
    personFacts: (fromUid, toUid) =>
      useNow((e) => e.channels.personFacts(fromUid, toUid)),
    groupsOf: (uid) => use((e) => e.channels.groupsOf(uid)),

    append(draft) {
      if (status !== "running" || engine === undefined)
        return Promise.reject(notRunning());
      return engine.appends.append(draft);
    },
    earlier: (message) => use((e) => e.appends.earlier(message)),
    readMessages: (key, range) => use((e) => e.history.read(key, range)),
    headSeq: (key) => use((e) => e.history.headSeq(key)),

    putPasswordOnce: (username, password) =>
      use((e) => e.managers.putPasswordOnce(username, password)),
    putAccessToken: (tokenHash, username, expiresAtMs) =>
      use((e) => e.managers.putAccessToken(tokenHash, username, expiresAtMs)),
    accessTokenOwner: (tokenHash) =>
      use((e) => e.managers.accessTokenOwner(tokenHash)),
    removeAccessToken: (tokenHash) =>
      use((e) => e.managers.removeAccessToken(tokenHash)),

    stats: () => (engine === undefined ? NO_STATS : statsOf(engine)),
    sweep: () => use((e) => e.sweep.run()),
    checkpoint: () => use((e) => e.checkpoint.run()),
  };
}

function ping({ journal, checkpoint }: Engine): void {
  if (checkpoint.failing) throw new BrokerError("unavailable");
  try {
    journal.probe();
  } catch (cause) {
    throw new BrokerError("unavailable", { cause });
  }
}

const NO_STATS: EmbeddedStats = {
  tailRecords: 0,
  tailBytes: 0,
  journalBytes: 0,
  checkpoints: 0,
  appends: 0,
  duplicates: 0,
};

function statsOf({
  tail,
  journal,
  checkpoint,
  appends,
}: Engine): EmbeddedStats {
  const { appended, duplicates } = appends.counts;
  return {
    tailRecords: tail.records,
    tailBytes: tail.bytes,
    journalBytes: journal.bytes(),
    checkpoints: checkpoint.count,
    appends: appended,
    duplicates,
  };
}

function toBrokerError(error: unknown): BrokerError {
  return error instanceof BrokerError
    ? error
    : new BrokerError("internal", { cause: error });
}
