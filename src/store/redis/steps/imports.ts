// Stores imported messages with their seqs, and the phase of the import, which all nodes share.

import { BrokerError } from "../../../broker/errors.ts";
import { bucketOf } from "../../../broker/log-frame.ts";
import { type ChannelKey, channelKey } from "../../../broker/model.ts";
import type {
  ImportedMessage,
  ImportPhase,
  ImportState,
  ImportStore,
  ImportVerdict,
  LineKind,
  MessageStore,
} from "../../../broker/ports.ts";
import { LINE_KINDS } from "../../../broker/ports.ts";
import { idCounterOf } from "../../../redis/id-counters.ts";
import { type Keys, usersOf } from "../../../redis/keys.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { decodeRecord, encodeRecord } from "../../../redis/wire.ts";
import { IMPORTED_HEADER, isSameMessage, mayBeRemoved } from "../../imported.ts";
import { payloadHash } from "../../payload-hash.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { areUsersApart, dedupeKey, otherUser } from "./channel-names.ts";

const PHASE = loadScript(lua("import_phase"));
const POSITION = loadScript(lua("import_position"));
const MESSAGES = loadScript(lua("import_messages"));

/** Maximum number of messages in one script, and of ids that a counter reserves at once. */
const MESSAGES_PER_CALL = 64;
/** Time added to a dedupe record's time to live, because machines' clocks differ. */
const SPACE_MS = 60_000;
/** Maximum number of attempts if another caller is importing messages into the same channel. */
const ATTEMPTS = 5;

const DATA_KEYS =
  /^[^:]*:(?:\{c\d+\}:(head|log|logHead|permanent|temporary|denylist|allowlist|positions):|\{u:.*\}:(devices|groups|peers|inboxSeq)$|\{all\}:(systemUids)$)/s;
const DATA_NAMES: Readonly<Record<string, string>> = {
  head: "channels or messages",
  log: "messages",
  logHead: "streams",
  permanent: "channel members",
  temporary: "channel members",
  denylist: "channel lists",
  allowlist: "channel lists",
  positions: "read positions",
  devices: "user tokens",
  groups: "channel members",
  peers: "messages",
  inboxSeq: "commands",
  systemUids: "system accounts",
};

/**
 * Newest seq of a channel, and the time of its newest imported message. Each value is 0 if the
 * channel has no such message.
 */
interface ImportedHead {
  readonly headSeq: number;
  readonly newestMs: number;
}

type LogEntry = readonly [id: Buffer, fields: readonly Buffer[]];

export const importKey = (keys: Keys): string => keys.shared("import");

export function createRedisImports(
  ports: RedisStorePorts,
): ImportStore & Pick<MessageStore, "seqOfSource"> {
  const { link, clock, limits, waitForReplicas } = ports;
  const { keys } = link;
  const stateKey = importKey(keys);

  async function readHead(key: ChannelKey): Promise<ImportedHead> {
    const headKey = keys.channel("head", key);
    const head = await link.call("hmget", headKey, "seq", "importedAt");
    const [headSeq = 0, newestMs = 0] = (head as readonly unknown[]).map(Number); // null becomes 0
    return { headSeq, newestMs };
  }

  /**
   * Compares the messages up to the channel's newest seq with the stored messages, and stores the
   * later ones. Returns the result for each message, or `undefined` if another caller has changed
   * the channel.
   */
  async function importSome(
    key: ChannelKey,
    messages: readonly ImportedMessage[],
    state: ImportedHead,
  ): Promise<readonly ImportVerdict[] | undefined> {
    const earlier = messages.filter(({ messageSeq }) => messageSeq <= state.headSeq);
    const compared = await compare(key, earlier, state.headSeq);
    const fresh = messages.slice(earlier.length);
    // The peers are added before the messages. An import that was interrupted continues after the
    // newest stored message, so it would not add them later.
    await addPeers(key);
    if (!(await store(key, fresh, state))) return undefined;
    return [...compared, ...fresh.map(() => "stored" as const)];
  }

  async function compare(
    key: ChannelKey,
    messages: readonly ImportedMessage[],
    headSeq: number,
  ): Promise<readonly ImportVerdict[]> {
    const [first] = messages;
    const last = messages.at(-1);
    if (first === undefined || last === undefined) return [];
    const log = keys.channel("log", key);
    const before = first.messageSeq - 1;
    const [entries, earlier] = await Promise.all([
      link.call("xrange", log, first.messageSeq, last.messageSeq),
      link.call("xrevrange", log, before, "-", "COUNT", 1),
    ]);
    const stored = new Map((entries as readonly LogEntry[]).map((entry) => [seqOf(entry), entry]));
    const [entryBefore] = earlier as readonly LogEntry[];
    let beforeMs = entryBefore === undefined ? 0 : messageOf(entryBefore).timestampMs;
    const history = {
      retentionMs: limits.retentionS * 1000,
      maxChannelMessages: limits.maxChannelMessages,
    };
    return messages.map((message) => {
      const entry = stored.get(message.messageSeq);
      const isSame =
        entry === undefined
          ? mayBeRemoved(message, headSeq, history, clock())
          : isSameMessage(messageOf(entry), message, beforeMs);
      beforeMs = Math.max(beforeMs, message.timestampMs);
      return isSame ? "unchanged" : "conflict";
    });
  }

  /**
   * Stores messages. If the channel's newest seq is no longer `headSeq`, stores nothing and returns
   * false.
   */
  async function store(
    key: ChannelKey,
    messages: readonly ImportedMessage[],
    { headSeq, newestMs }: ImportedHead,
  ): Promise<boolean> {
    const [first] = messages;
    if (first === undefined) return true;
    const nowMs = clock();
    const windowMs = limits.dedupeWindowS * 1000;
    const { retentionS, maxChannelMessages } = limits;
    const ids = idCounterOf(link, bucketOf(key));
    let timestampMs = newestMs;
    const items = messages.flatMap((message): Arg[] => {
      timestampMs = Math.max(timestampMs, message.timestampMs);
      const { messageSeq, fromUid, clientMsgNo, sourceId, expireS, payload } = message;
      const record = encodeRecord(
        { ...message, header: IMPORTED_HEADER, streamNo: undefined, tagKey: undefined },
        timestampMs,
      );
      const leftMs = timestampMs + windowMs - nowMs;
      const isDeduped = clientMsgNo !== "" && leftMs > 0;
      const expires = expireS === 0 ? "" : timestampMs + expireS * 1000;
      const dedupe = isDeduped
        ? [dedupeKey(keys, { key, fromUid, clientMsgNo }), payloadHash(payload), leftMs + SPACE_MS]
        : ["", "", 0];
      return [messageSeq, timestampMs, fromUid, record, sourceId, expires, ...dedupe];
    });
    const endsMs = messages.flatMap(({ expireS, timestampMs: sentMs }) =>
      expireS === 0 ? [] : Math.max(sentMs, newestMs) + expireS * 1000,
    );
    const dueMs = Math.min(
      ...endsMs,
      retentionS > 0 ? Math.max(first.timestampMs, newestMs) + retentionS * 1000 : Infinity,
      maxChannelMessages > 0 ? nowMs : Infinity,
    );
    const channelKeys = ["head", "log", "labels"].map((part) => keys.channel(part, key));
    const reply = await link.run(
      MESSAGES,
      [
        ...channelKeys,
        keys.bucket("due", bucketOf(key)),
        ...["expiry", "redDots"].map((part) => keys.channel(part, key)),
        ids.key,
      ],
      [
        ...[nowMs, ids.bucket, headSeq, key, dueMs === Infinity ? "+inf" : dueMs],
        areUsersApart(link, key) ? 1 : 0,
        ...items,
      ],
    );
    return reply === 1;
  }

  /** Adds the users of a personal channel to each other's `peers`, even if an earlier call did. */
  async function addPeers(key: ChannelKey): Promise<void> {
    const users = usersOf(key);
    const timeMs = clock();
    await Promise.all(
      users.map(async (uid) => {
        const peers = keys.user("peers", uid);
        await link.write("zadd", peers, "GT", timeMs, otherUser(users, uid));
        await waitForReplicas(peers);
      }),
    );
  }

  return {
    async importState(): Promise<ImportState> {
      const names = ["phase", ...LINE_KINDS];
      const reply = await link.call("hmget", stateKey, ...names);
      const [phase, ...counts] = (reply as readonly (Buffer | null)[]).map((value) =>
        value === null ? undefined : String(value),
      );
      const stored: Partial<Record<LineKind, number>> = {};
      for (const [at, kind] of LINE_KINDS.entries())
        if (counts[at] !== undefined) stored[kind] = Number(counts[at]);
      return { phase: (phase ?? "none") as ImportPhase, stored }; // written by `import_phase.lua`
    },

    async changeImportPhase(from, to) {
      const before = await link.run(PHASE, [stateKey], [to, ...from]);
      await waitForReplicas(stateKey);
      return String(before) as ImportPhase; // see `import_phase.lua`
    },

    async countImported(lines) {
      for (const [kind, count] of Object.entries(lines))
        await link.write("hincrby", stateKey, kind, count);
    },

    async storedData() {
      for await (const key of link.allKeys()) {
        const part = DATA_KEYS.exec(key)
          ?.slice(1)
          .find((name) => name !== undefined);
        if (part !== undefined) return DATA_NAMES[part];
      }
      return undefined;
    },

    async importMessages(key, messages) {
      const verdicts: ImportVerdict[] = [];
      let head = await readHead(key);
      for (let at = 0; at < messages.length; at += MESSAGES_PER_CALL) {
        const some = messages.slice(at, at + MESSAGES_PER_CALL);
        let results: readonly ImportVerdict[] | undefined;
        for (let attempt = 0; results === undefined; attempt++) {
          if (attempt === ATTEMPTS) throw new BrokerError("overloaded");
          if (attempt > 0) head = await readHead(key);
          results = await importSome(key, some, head);
        }
        verdicts.push(...results);
        head = headAfter(head, some);
      }
      await waitForReplicas(keys.channel("head", key));
      return verdicts;
    },

    async importPosition(uid, channel, { readSeq, deletedSeq }) {
      const key = channelKey(channel, uid);
      const names = ["head", "positions"].map((part) => keys.channel(part, key));
      const reply = await link.run(POSITION, names, [uid, readSeq, deletedSeq]);
      await waitForReplicas(keys.channel("head", key));
      return reply === 1;
    },

    async seqOfSource(key, sourceId) {
      const score = await link.call("zscore", keys.channel("labels", key), sourceId);
      return score === null ? undefined : Number(score);
    },
  };
}

/** Returns the head of a channel after messages were imported. */
function headAfter(
  { headSeq, newestMs }: ImportedHead,
  messages: readonly ImportedMessage[],
): ImportedHead {
  const added = messages.filter(({ messageSeq }) => messageSeq > headSeq);
  return {
    headSeq: added.at(-1)?.messageSeq ?? headSeq,
    newestMs: Math.max(newestMs, ...added.map(({ timestampMs }) => timestampMs)),
  };
}

function seqOf([id]: LogEntry): number {
  return Number(String(id).split("-")[0]);
}

function messageOf([id, fields]: LogEntry) {
  const [messageSeq, messageId] = String(id).split("-").map(Number) as [number, number];
  const at = fields.findIndex((name, index) => index % 2 === 0 && String(name) === "r");
  return decodeRecord(fields[at + 1] ?? Buffer.alloc(0), { messageId, messageSeq });
}
