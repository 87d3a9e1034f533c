// The tables of an embedded store's folder, in the order in which they are migrated. Expired access
// tokens and expired dedupe records are not migrated. Expired command copies are migrated only if
// the event feed is on. A channel's publication numbers start at its newest seq.

import { bucketOf } from "../broker/log-frame.ts";
import {
  type ChannelKey,
  type ChannelType,
  type DeviceFlag,
  type DeviceLevel,
  GROUP_CHANNEL,
  userTopic,
} from "../broker/model.ts";
import { idCounterKeys } from "../redis/id-counters.ts";
import { ChannelRows, numberIn, rangeOf } from "../store/embedded/engine/channel-rows.ts";
import { fieldsOf, type Stored } from "../store/embedded/engine/database.ts";
import { eventsIn, partitionIn } from "../store/embedded/engine/event-rows.ts";
import { decodeRecord } from "../store/embedded/engine/record.ts";
import * as folder from "../store/embedded/export.ts";
import {
  ALLOWLIST,
  DENYLIST,
  PERMANENT,
  TEMPORARY,
} from "../store/embedded/steps/channel-tables.ts";
import { importedHead, importStateIn } from "../store/embedded/steps/imports.ts";
import { commandOf, expiryOf, readState, senderOf } from "../store/embedded/steps/inbox-rows.ts";
import { ownerOf } from "../store/embedded/steps/managers.ts";
import { pushCursor } from "../store/embedded/steps/push.ts";
import { signingKeyOf } from "../store/embedded/steps/signing-keys.ts";
import { BAN, DEVICE_VERSION } from "../store/embedded/steps/users.ts";
import { type WebhookRowKind, webhookOf } from "../store/embedded/steps/webhooks.ts";
import { encodeInfo, LIST_BITS, ownField, recordKey } from "../store/redis/steps/channel-record.ts";
import { encodeEvent, encodeSwitch, feedFields } from "../store/redis/steps/events.ts";
import { importKey } from "../store/redis/steps/imports.ts";
import * as managers from "../store/redis/steps/managers.ts";
import { pushFields, pushKey } from "../store/redis/steps/push.ts";
import { encodeSigningKey, signingKeysKey } from "../store/redis/steps/signing-keys.ts";
import { systemUidsKey } from "../store/redis/steps/system-accounts.ts";
import { BAN_FIELD, encodeDevice } from "../store/redis/steps/users.ts";
import { encodeWebhook, webhooksKey, webhookTextsKey } from "../store/redis/steps/webhooks.ts";
import {
  type CountedKind,
  fact,
  type MoveContext,
  type MoveRow,
  type RowFacts,
  SPACE_MS,
} from "./facts.ts";
import { logFacts } from "./log-facts.ts";
import {
  copyFacts,
  firstFacts,
  headFacts,
  importedFacts,
  messageFacts,
  streamFacts,
} from "./message-facts.ts";
import type { MOVE_STEPS } from "./record.ts";

type MoveStep = (typeof MOVE_STEPS)[number];

export interface MoveTable {
  readonly name: string;
  readonly step: MoveStep;
  readonly total: number;
  /**
   * Yields the rows after the watermark `at` ("" for all rows). The caller may continue the
   * iteration in later turns of the event loop. Throws `internal` if the data cannot be read.
   */
  rows(at: string): Iterable<MoveRow>;
}

/**
 * Time at which a migrated group was added to a user's index of groups. The folder does not store
 * the real time.
 */
const ENTERED = "0";
const GROUP_VERSION = 2;
/** Score in `online` of a user whose sessions no node has checked yet. */
const NOT_CHECKED = "0";

function table<K, V>(
  [step, name]: readonly [MoveStep, string],
  rowTable: folder.RowTable,
  read: (row: folder.Row<K, V>) => RowFacts,
  range?: folder.Range,
): MoveTable {
  return {
    ...{ name, step, total: folder.entriesOf(rowTable) },
    *rows(place) {
      for (const row of folder.rowsOf<K, V>(rowTable, place, range))
        yield { ...read(row), at: row.at };
    },
  };
}

export function moveTables(source: folder.MoveSource, context: MoveContext): readonly MoveTable[] {
  return [
    ...userTables(source, context),
    ...channelTables(source, context),
    ...messageTables(source, context),
  ];
}

function userTables(
  { tables }: folder.MoveSource,
  { link: { keys }, clock }: MoveContext,
): readonly MoveTable[] {
  return [
    table<[uid: string, flag: DeviceFlag | typeof BAN], Stored>(
      ["user", "devices"],
      tables.devices,
      ({ key: [uid, flag], value }) => {
        const key = keys.user("devices", uid);
        // Rows of the version `DEVICE_VERSION` contain these fields.
        const fields = fieldsOf(value, DEVICE_VERSION) as [DeviceLevel, Uint8Array, number];
        const [level, hash, revokedS] = fields;
        const item =
          flag === BAN
            ? [BAN_FIELD, "1"]
            : [flag, encodeDevice({ level, tokenHash: hash, revokedS })];
        return {
          facts: [fact("HSET", key, item)],
          ...{ counts: ["devices"], sizes: [["devices", key]] },
        };
      },
    ),
    // No user is online after a migration. The `user.offline` event is written later for users who
    // do not return.
    table<string, Stored>(["user", "online"], tables.online, ({ key: uid, value }) => {
      const key = keys.user("announced", uid);
      const index = keys.bucket("online", bucketOf(userTopic(uid)));
      return {
        facts: [
          fact("SET", key, [String(fieldsOf(value)[0])]),
          fact("ZADD", index, [NOT_CHECKED, uid]),
        ],
        ...{ counts: ["announced"], sizes: [["announced", key]] },
      };
    }),
    table<string, Stored>(["user", "managers"], tables.managers, ({ key: username, value }) => {
      const key = managers.passwordsKey(keys);
      const password = managers.encodePassword(String(fieldsOf(value)[0]));
      return {
        facts: [fact("HSET", key, [username, password])],
        ...{ counts: ["managers"], sizes: [["managers", key]] },
      };
    }),
    table<string, Stored>(["user", "systemUids"], tables.systemUids, ({ key: uid }) => {
      const key = systemUidsKey(keys);
      return {
        facts: [fact("SADD", key, [uid])],
        ...{ counts: ["systemUids"], sizes: [["systemUids", key]] },
      };
    }),
    table<number, Stored>(["user", "signingKeys"], tables.signingKeys, (row) => {
      const key = signingKeysKey(keys);
      const signingKey = signingKeyOf(row.key, row.value);
      return {
        facts: [fact("HSET", key, [`${signingKey.number}`, encodeSigningKey(signingKey)])],
        ...{ counts: ["signingKeys"], sizes: [["signingKeys", key]] },
      };
    }),
    table<[kind: WebhookRowKind, id: string, name: string], Stored>(
      ["user", "webhooks"],
      tables.webhooks,
      ({ key: [kind, id, name], value }) => {
        if (kind === "settings") {
          const key = webhooksKey(keys);
          return {
            facts: [fact("HSET", key, [id, encodeWebhook(webhookOf(id, value))])],
            ...{ counts: ["webhooks"], sizes: [["webhooks", key]] },
          };
        }
        const key = webhookTextsKey(keys, kind, id);
        const counted = kind === "state" ? "webhookState" : "webhookParked";
        return {
          facts: [fact("HSET", key, [name, String(fieldsOf(value)[0])])],
          ...{ counts: [counted], sizes: [[counted, key]] },
        };
      },
    ),
    table<string, Stored>(["user", "tokens"], tables.tokens, ({ key: hash, value }) => {
      const { owner, expiresAtMs: endMs } = ownerOf(value);
      const key = managers.accessTokenKey(keys, hash);
      const leftMs = endMs - clock();
      const sizes = [["tokens", key]] as const;
      if (leftMs <= 0) return { expired: ["tokens"], sizes };
      const token = managers.encodeToken(owner, endMs);
      return {
        facts: [fact("SET", key, [token], leftMs + SPACE_MS)],
        ...{ counts: ["tokens"], sizes },
      };
    }),
  ];
}

function channelTables(
  { tables }: folder.MoveSource,
  { link: { keys } }: MoveContext,
): readonly MoveTable[] {
  /**
   * Creates a table. Each row adds a uid to those SETs of a channel whose bits are set in the row.
   */
  const uidTable = (
    name: "members" | "lists",
    sets: Readonly<Partial<Record<CountedKind, number>>>,
  ) =>
    table<[type: ChannelType, id: string, uid: string], Stored>(
      ["channel", name],
      tables[name],
      ({ key: [type, id, uid], value }) => {
        const bits = Number(fieldsOf(value)[0]);
        // `Object.entries` loses the type of the keys.
        const bitsBySet = Object.entries(sets) as [CountedKind, number][];
        const kinds = bitsBySet.flatMap(([kind, bit]) => (bits & bit ? kind : []));
        const key = recordKey({ type, id });
        return {
          facts: kinds.map((kind) => fact("SADD", keys.channel(kind, key), [uid])),
          counts: kinds,
        };
      },
    );
  return [
    table<[type: ChannelType, id: string], Stored>(
      ["channel", "channels"],
      tables.channels,
      ({ key: [type, id], value }) => {
        const name = recordKey({ type, id });
        const fields = fieldsOf(value) as boolean[];
        const [ban, disband, sendBan, allowStranger, large, , clientEvents] = fields;
        const info = encodeInfo({
          ...{ ban: ban === true, disband: disband === true },
          ...{ sendBan: sendBan === true, large: large === true },
          ...{ allowStranger: allowStranger === true, clientEvents: clientEvents !== false },
        });
        const head = keys.channel("head", name);
        const members: readonly CountedKind[] =
          type === GROUP_CHANNEL
            ? ["permanent", "temporary", "joinSeqs"]
            : ["permanent", "temporary"];
        const sizes = members.map((kind) => [kind, keys.channel(kind, name)] as const);
        return {
          facts: [fact("HSET", head, ["info", info])],
          ...{ counts: ["info"], sizes: [["info", head], ...sizes] },
        };
      },
    ),
    uidTable("members", { permanent: PERMANENT, temporary: TEMPORARY }),
    table<[type: ChannelType, id: string], Stored>(
      ["channel", "listSizes"],
      tables.listSizes,
      ({ key: [type, id], value }) => {
        const name = recordKey({ type, id });
        const [denied, allowed] = fieldsOf(value).map(Number);
        const lists = (denied ? LIST_BITS.denylist : 0) + (allowed ? LIST_BITS.allowlist : 0);
        const head = keys.channel("head", name);
        return {
          facts: [fact("HSET", head, ["lists", `${lists}`])],
          counts: ["lists"],
          sizes: [
            ["lists", head],
            ["denylist", keys.channel("denylist", name)],
            ["allowlist", keys.channel("allowlist", name)],
          ],
        };
      },
    ),
    uidTable("lists", { denylist: DENYLIST, allowlist: ALLOWLIST }),
    table<[uid: string, id: string], Stored>(
      ["channel", "groups"],
      tables.groups,
      ({ key: [uid, id], value }) => {
        const joinSeq = Number(fieldsOf(value, GROUP_VERSION)[0] ?? 0);
        const name = recordKey({ type: GROUP_CHANNEL, id });
        return {
          facts: [
            fact("HSET", keys.channel("joinSeqs", name), [uid, `${joinSeq}`]),
            fact("HSET", keys.user("groups", uid), [id, ENTERED]),
          ],
          counts: ["joinSeqs"],
        };
      },
    ),
  ];
}

function eventTables(
  { tables, events }: folder.MoveSource,
  { link: { keys } }: MoveContext,
): readonly MoveTable[] {
  return [
    ...(["events", "onDemandEvents"] as const).map((name) =>
      table<Buffer, Stored>(["message", name], tables[name], ({ key, value, before }) => {
        const partition = partitionIn(key);
        const isFirst = before === undefined || partitionIn(before) !== partition;
        const rows = eventsIn(key, value);
        const items = rows
          .map(encodeEvent)
          .flatMap(([id, fields]) => [id, fields.length, ...fields]);
        const eventsKey = keys.bucket(name, partition);
        return {
          facts: [fact(isFirst ? "XNEW" : "XADD", eventsKey, items)],
          counts: rows.map(() => name),
          sizes: [[name, eventsKey]],
        };
      }),
    ),
    {
      ...{ name: "feed", step: "message", total: 1 },
      *rows(at) {
        const { switch: isOn } = events;
        if (at !== "") return;
        if (isOn === undefined) return yield { facts: [], at: "done" };
        const buckets = events
          .newest()
          .map((newest, partition) =>
            fact(
              "HSET",
              keys.bucket("feed", partition),
              feedFields(isOn, newest, events.trimmed(partition)),
            ),
          );
        const cursors = buckets.flatMap((_, partition) => {
          const position = pushCursor(tables, partition);
          if (position === undefined) return [];
          return [fact("HSET", pushKey(keys, partition), pushFields(position))];
        });
        const shared = fact("SET", keys.shared("feed"), [encodeSwitch(isOn)]);
        yield { facts: [...buckets, ...cursors, shared], at: "done" };
      },
    },
  ];
}

function messageTables(source: folder.MoveSource, context: MoveContext): readonly MoveTable[] {
  const { tables, lastMessageId } = source;
  const { link, clock } = context;
  const { keys } = link;
  return [
    {
      ...{ name: "log", step: "message", total: folder.countRecords(tables) },
      *rows(place) {
        for (const row of folder.recordsOf(tables, place))
          yield { ...messageRowFacts(source, context, row), at: row.at };
      },
    },
    {
      ...{ name: "heads", step: "message" },
      total: [tables.heads, tables.own, ...tables.dedupe]
        .map(folder.entriesOf)
        .reduce((sum, count) => sum + count, 0),
      rows: (at) => headRows(source, context, at),
    },
    table<[uid: string, channel: ChannelKey], Stored>(
      ["message", "positions"],
      tables.positions,
      ({ key: [uid, channel], value }) => {
        // A power failure may have removed the channel. The channel's seqs will be reused, so the
        // position would be wrong.
        if (tables.heads.get(channel) === undefined) return {};
        const position = fieldsOf(value).slice(0, 4).map(Number).join(" ");
        const key = keys.channel("positions", channel);
        return {
          facts: [fact("HSET", key, [uid, position])],
          counts: ["positions"],
        };
      },
    ),
    table<Buffer, Buffer>(["message", "inbox"], tables.inbox, ({ key, value, before }) => {
      const command = commandOf(value);
      const record = tables.commands.get(command);
      if (record === undefined) return {}; // the command has expired and was removed
      const { uid, seq } = folder.copyOf(key);
      const isFirst = !before || folder.copyOf(before).uid !== uid;
      const endMs = expiryOf(command);
      const { message } = decodeRecord(record);
      const facts = copyFacts(context, {
        ...{ uid, seq, endMs, isFirst, message },
        sender: senderOf(value),
        isListed: folder.hasUserCopies(tables, key),
        hasFeed: source.events.switch === true,
      });
      return endMs <= clock() ? { facts, expired: ["inbox"] } : { facts, counts: ["inbox"] };
    }),
    table<Buffer, Buffer>(["message", "inboxes"], tables.inboxes, (row) => {
      const uid = folder.uidOf(row.key);
      const key = keys.user("inboxSeq", uid);
      const { last } = readState(row.value);
      return {
        facts: [fact("SET", key, [`${last}`])],
        counts: ["inboxSeq"],
        sizes: [
          ["inboxSeq", key],
          ["inbox", keys.user("inbox", uid)],
        ],
      };
    }),
    table<Buffer, Stored>(["message", "logs"], tables.logHeads, ({ key }) => {
      const log = folder.logOf(tables, key);
      return log === undefined ? {} : logFacts(context, log);
    }),
    ...eventTables(source, context),
    ...tables.dedupe.map((rowTable, at) => ({
      ...table<Buffer, Buffer>(
        ["message", `commandFirsts${at}`],
        rowTable,
        (row) => ({
          facts: firstFacts(context, folder.firstOf(row, tables, at)),
        }),
        rangeOf(folder.COMMANDS),
      ),
      total: 0, // counted in the total of the table `heads`
    })),
    {
      ...{ name: "import", step: "message", total: 1 },
      *rows(at) {
        const { phase, stored } = importStateIn(tables);
        const items = ["phase", phase, ...Object.entries(stored).flat().map(String)];
        const facts = phase === "none" ? [] : [fact("HSET", importKey(keys), items)];
        if (at === "") yield { facts, at: "done" };
      },
    },
    {
      ...{ name: "ids", step: "message", total: 1 },
      *rows(at) {
        const counters = idCounterKeys(link);
        const facts = counters.map((key) => fact("SET", key, [lastMessageId]));
        if (at === "") yield { facts, at: "done" };
      },
    },
  ];
}

function messageRowFacts(
  source: folder.MoveSource,
  context: MoveContext,
  { key, value, before }: folder.Row<Buffer, Buffer>,
): RowFacts {
  const number = numberIn(key);
  const isFirst = !before || numberIn(before) !== number;
  const row = folder.messageOf(value);
  const stream = row.isStream ? source.stream(row.message) : undefined;
  const isStream = stream !== undefined;
  const facts = messageFacts(context, { ...row, isStream, isFirst });
  const { sourceId } = row.message;
  const labels: readonly CountedKind[] = sourceId === undefined ? [] : ["labels"];
  if (stream === undefined) return { facts, counts: ["log", ...labels] };
  const { state, key: channel, clientMsgNo } = stream.snapshot;
  const active: readonly CountedKind[] = state === "active" ? ["openStreams"] : [];
  const { keys } = context.link;
  const producers = [...stream.log.producers].map(() => "logProducers" as const);
  return {
    facts: [...streamFacts(context, row.message, stream), ...facts],
    counts: ["log", "stream", ...active, ...labels, ...producers],
    sizes: [
      ["stream", keys.channel("logHead", channel, clientMsgNo)],
      ["logProducers", keys.channel("logProducers", channel, clientMsgNo)],
    ],
  };
}

function* headRows(
  { tables }: folder.MoveSource,
  context: MoveContext,
  at: string,
): Generator<MoveRow> {
  const { keys } = context.link;
  const rows = new ChannelRows(tables);
  const { heads, own: senderRows, dedupe } = tables;
  let doneAt = at;
  for (const { key, at: headAt } of folder.rowsOf<ChannelKey>(heads, at)) {
    const row = rows.get(key);
    if (row === undefined) continue;
    const head = keys.channel("head", key);
    const range = rangeOf(row.number);
    // The watermark advances only with the last row of a channel.
    for (const senderRow of folder.rowsOf<Buffer, Buffer>(senderRows, "", range)) {
      const { uid, seq } = folder.ownOf(senderRow);
      const facts = [fact("HSET", head, [ownField(uid), `${seq}`])];
      yield { facts, counts: ["own"], at: doneAt };
    }
    for (const [generation, rowTable] of dedupe.entries())
      for (const dedupeRow of folder.rowsOf<Buffer, Buffer>(rowTable, "", range)) {
        const first = folder.firstOf(dedupeRow, tables, generation);
        const named = first && { ...first, key };
        yield { facts: firstFacts(context, named), at: doneAt };
      }
    doneAt = headAt;
    const edges = folder.edgesOf(tables, row.number);
    const kinds = ["log", "labels", "positions", "openStreams"] as const;
    yield {
      facts: [
        ...headFacts(context, { ...row, key, edges }),
        ...importedFacts(head, importedHead(tables, key)),
      ],
      sizes: [["own", head], ...kinds.map((kind) => [kind, keys.channel(kind, key)] as const)],
      at: doneAt,
    };
  }
}
