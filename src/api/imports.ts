// Endpoints that import another server's data. They open and close the import, store its lines, and
// return its state. The lines are NDJSON, one JSON object per line.

import { type Static, type TSchema, Type } from "typebox";
import { ERRORS } from "../broker/errors.ts";
import type { ImportLine, Imports, LineResult } from "../broker/imports.ts";
import { isSourceId } from "../broker/message-lookup.ts";
import {
  channelKey,
  isId,
  MAX_EXPIRE_S,
  MAX_ID_LENGTH,
  MAX_TOKEN_LENGTH,
  PERSON_CHANNEL,
} from "../broker/model.ts";
import { LINE_KINDS, type LineKind } from "../broker/ports.ts";
import { parseWithLongIntegers } from "../lib/long-numbers.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { textOf, valueReader } from "./body.ts";
import { edgeReply, errorReply, unsupportedEncoding } from "./errors.ts";
import {
  channelId,
  channelType,
  deviceFlag,
  deviceLevel,
  flag,
  id,
  OPTIONAL_LABEL_PATTERN,
  personUid,
  sendBan,
  uids,
} from "./fields.ts";
import { decodeBase64 } from "./messages.ts";
import { jsonReply } from "./reply.ts";

export const NDJSON = "application/x-ndjson";
/** Maximum number of lines in one call. */
const MAX_LINES = 20_000;
const MAX_SEQ = 2 ** 48 - 1;
const MAX_TIME_S = 8_640_000_000_000;

const seq = (description: string) => Type.Integer({ minimum: 0, maximum: MAX_SEQ, description });
const reset = Type.Optional(
  flag("0: the uids are added. 1 or absent: they replace the existing ones"),
);

function lineSchemas(maxUids: number) {
  const channel = { channel_id: channelId, channel_type: channelType };
  const kind = <Kind extends LineKind>(name: Kind) => Type.Literal(name);
  return {
    user: Type.Object({
      kind: kind("user"),
      uid: id("User id"),
      ban: Type.Optional(flag("1: the account is banned. Bans apply only in the wukongim dialect")),
    }),
    token: Type.Object({
      kind: kind("token"),
      uid: id("User id"),
      device_flag: deviceFlag("Type of the device"),
      device_level: Type.Optional(deviceLevel("Level of the device")),
      token: Type.String({
        maxLength: MAX_TOKEN_LENGTH,
        description: "Token of the device; empty if the device was logged out",
      }),
    }),
    channel: Type.Object({
      kind: kind("channel"),
      ...channel,
      ban: Type.Optional(flag("1: only the system and system accounts may send to the channel")),
      disband: Type.Optional(flag("1: the channel is disbanded")),
      send_ban: Type.Optional(sendBan),
      allow_stranger: Type.Optional(flag("1: strangers may send to the user")),
      large: Type.Optional(flag("1: a super-large group")),
    }),
    members: Type.Object({
      kind: kind("members"),
      ...channel,
      uids: uids("Permanent members", maxUids),
      reset,
    }),
    list: Type.Object({
      kind: kind("list"),
      ...channel,
      list: Type.Enum(["denylist", "allowlist"], {
        type: "string",
        description: "Name of the list",
      }),
      uids: uids("Users on the list", maxUids),
      reset,
    }),
    message: Type.Object({
      kind: kind("message"),
      ...channel,
      from_uid: id("Sender"),
      message_seq: Type.Integer({
        minimum: 1,
        maximum: MAX_SEQ,
        description: "Sequence number in the channel",
      }),
      message_id: Type.Unsafe<string>({
        type: ["string", "integer"],
        description: "Id on the source server, up to 20 digits",
      }),
      client_msg_no: Type.Optional(
        Type.String({
          pattern: OPTIONAL_LABEL_PATTERN,
          description: "client_msg_no of the message, chosen by its sender",
        }),
      ),
      timestamp: Type.Integer({
        minimum: 0,
        maximum: MAX_TIME_S,
        description: "Time of the message in Unix seconds",
      }),
      expire: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_EXPIRE_S,
          description: "Seconds after `timestamp` at which the message expires. 0 means never",
        }),
      ),
      setting: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: 255,
          description: "Bits of the WKProto field Setting that the client sent with the message",
        }),
      ),
      topic: Type.Optional(
        Type.String({
          pattern: OPTIONAL_LABEL_PATTERN,
          description: "Topic that a WKProto client sent with the message",
        }),
      ),
      payload: Type.String({ description: "Content in standard base64" }),
      stream_data: Type.Optional(
        Type.String({
          description:
            "Text of a finished stream in standard base64. It becomes the `content` field of the payload",
        }),
      ),
    }),
    position: Type.Object({
      kind: kind("position"),
      uid: id("User id"),
      ...channel,
      read_seq: seq("Sequence number up to which the user has read the messages"),
      deleted_seq: Type.Optional(
        seq("Sequence number up to which the messages are hidden from the user"),
      ),
    }),
    system_uid: Type.Object({ kind: kind("system_uid"), uid: id("System account") }),
  } satisfies Record<LineKind, TSchema>;
}

type Lines = ReturnType<typeof lineSchemas>;

/** Schema of one line, for the OpenAPI document. */
export const importLine = (maxUids: number) =>
  Type.Union(Object.values(lineSchemas(maxUids)), {
    title: "ImportLine",
    description: "One line of the body",
    examples: [{ kind: "token", uid: "alice", device_flag: 0, device_level: 1, token: "secret" }],
  });

export const importQuery = Type.Object({
  channel_id: Type.Optional(channelId),
  channel_type: Type.Optional(channelType),
  uid: Type.Optional(personUid),
  from_seq: Type.Optional(seq("First sequence number that the checksum includes. Absent means 1")),
  to_seq: Type.Optional(
    seq("Last sequence number that the checksum includes. Absent means the newest"),
  ),
});

export type ImportUseCases = Pick<Imports, "open" | "finish" | "apply" | "range" | "state">;

export interface ImportLimits {
  readonly maxPayloadBytes: number;
  readonly retentionS: number;
  readonly maxChannelMessages: number;
}

interface RefusedLine {
  readonly line: number;
  readonly code: string;
  readonly message: string;
}

type Refusal = Exclude<LineResult, string>;

export function createImportCalls(imports: ImportUseCases, limits: ImportLimits, maxUids: number) {
  const schemas = lineSchemas(maxUids);
  const readers = Object.fromEntries(
    LINE_KINDS.map((kind) => [kind, valueReader<TSchema>(schemas[kind])]),
  );

  /** Parses a line. Returns the line, or the reason why it cannot be stored. */
  function lineOf(text: string): ImportLine | Refusal {
    let parsed: unknown;
    try {
      parsed = parseWithLongIntegers(text, "message_id");
    } catch {
      return refusal("The line is not valid JSON");
    }
    const kind = Object(parsed).kind as unknown;
    const read =
      typeof kind === "string" && Object.hasOwn(readers, kind) ? readers[kind] : undefined;
    if (read === undefined) return refusal(`kind must be one of ${LINE_KINDS.join(", ")}`);
    const result = read(parsed);
    if ("problem" in result) return result.problem;
    const line = result.value as AnyLine; // `read` has checked the type
    return labelRefusal(line) ?? toLine(line, limits.maxPayloadBytes);
  }

  return {
    async open() {
      const outcome = await imports.open();
      if (outcome.kind === "refused")
        return edgeReply(
          "import_refused",
          {},
          `The store is not empty: it contains ${outcome.what}. Open the import on a node with an empty store`,
        );
      return outcome.kind === "closed" ? edgeReply("import_closed") : stateReply();
    },

    async close() {
      const outcome = await imports.finish();
      return outcome.kind === "done" ? stateReply() : edgeReply("import_closed", {}, NEVER_OPENED);
    },

    async store(request: HttpRequest): Promise<HttpReply> {
      const encoding = request.headers["content-encoding"] ?? "";
      if (encoding !== "" && encoding.toLowerCase() !== "identity")
        return unsupportedEncoding(encoding);
      const type = request.headers["content-type"] ?? "";
      if (type !== "" && type.split(";", 1)[0]?.trim().toLowerCase() !== NDJSON)
        return edgeReply("unsupported_media_type", {}, NOT_NDJSON);
      const text = textOf(request);
      if (text === undefined) return badRequest("The body is not valid UTF-8");
      const texts = text.split("\n");
      if (texts.length > MAX_LINES + 1)
        return badRequest(`The body has more than ${MAX_LINES} lines. Send it in several calls`);
      const refused: RefusedLine[] = [];
      const lines: ImportLine[] = [];
      const numbers: number[] = [];
      for (const [at, lineText] of texts.entries()) {
        if (lineText.trim() === "") continue;
        const line = lineOf(lineText);
        if ("kind" in line) {
          lines.push(line);
          numbers.push(at + 1);
        } else refused.push(refusedLine(at + 1, line));
      }
      if (lines.length + refused.length === 0) return badRequest("The body has no lines");
      const results = await imports.apply(lines);
      if (results === undefined) return edgeReply("import_closed");
      let [stored, unchanged] = [0, 0];
      for (const [at, result] of results.entries()) {
        if (result === "stored") stored += 1;
        else if (result === "unchanged") unchanged += 1;
        else refused.push(refusedLine(numbers[at] ?? 0, result));
      }
      refused.sort((a, b) => a.line - b.line);
      return jsonReply(JSON.stringify({ stored, unchanged, refused }));
    },

    async state(query: Static<typeof importQuery>) {
      const { channel_id: channelName, channel_type: type } = query;
      if (channelName === undefined && type === undefined) return stateReply();
      if (channelName === undefined || type === undefined)
        return badRequest("channel_id and channel_type must both be present, or both be absent");
      const uid = query.uid ?? "";
      if (type === PERSON_CHANNEL && uid === "")
        return badRequest("uid is required for a personal channel");
      const key = channelKey({ id: channelName, type }, uid);
      const { from_seq: from = 1, to_seq: to = MAX_SEQ } = query;
      const range = await imports.range(key, Math.max(1, from), to);
      return stateReply({
        head_seq: range.headSeq,
        head_timestamp: Math.floor(range.headTimestampMs / 1000),
        through_seq: range.throughSeq,
        count: range.count,
        checksum: range.checksum,
      });
    },
  };

  async function stateReply(channel?: object): Promise<HttpReply> {
    const { phase, stored } = await imports.state();
    return jsonReply(
      JSON.stringify({
        state: phase,
        stored,
        retention_s: limits.retentionS,
        max_channel_messages: limits.maxChannelMessages,
        ...(channel && { channel }),
      }),
    );
  }
}

const NEVER_OPENED = "No import is open. Open one with POST /admin/import/open";
const NOT_NDJSON = `The body must be sent with Content-Type: ${NDJSON}`;

function badRequest(message: string): HttpReply {
  return errorReply("bad_request", { message });
}

function refusal(message: string): Refusal {
  return { code: "bad_request", message };
}

function refusedLine(line: number, { code, message }: Refusal): RefusedLine {
  return { line, code, message };
}

type AnyLine = { readonly [Kind in LineKind]: Static<Lines[Kind]> }[LineKind];

/**
 * Returns the reason why an id or a label in the line cannot be used in later calls. The schemas
 * accept some that are too long for the broker, because their patterns count characters, but the
 * broker counts UTF-16 units.
 */
function labelRefusal(line: AnyLine): Refusal | undefined {
  const ids = [
    ...("uid" in line ? [line.uid] : []),
    ...("from_uid" in line ? [line.from_uid] : []),
    ...("channel_id" in line ? [line.channel_id] : []),
    ...("uids" in line ? line.uids : []),
  ];
  if (!ids.every(isId)) return { code: "bad_id", message: ERRORS.bad_id.message };
  const labels = {
    client_msg_no: "client_msg_no" in line ? line.client_msg_no : undefined,
    topic: "topic" in line ? line.topic : undefined,
  };
  for (const [name, label = ""] of Object.entries(labels))
    if (label.length > MAX_ID_LENGTH)
      return refusal(`${name} must have at most ${MAX_ID_LENGTH} characters`);
  return undefined;
}

function toLine(line: AnyLine, maxPayloadBytes: number): ImportLine | Refusal {
  switch (line.kind) {
    case "user":
      return {
        kind: "user",
        uid: line.uid,
        isBanned: line.ban === undefined ? undefined : line.ban === 1,
      };
    case "token":
      return {
        kind: "token",
        uid: line.uid,
        flag: line.device_flag,
        level: line.device_level ?? 0,
        token: line.token,
      };
    case "channel":
      return {
        kind: "channel",
        info: {
          ...channelOf(line),
          ban: line.ban === 1,
          disband: line.disband === 1,
          sendBan: line.send_ban === 1,
          allowStranger: line.allow_stranger === 1,
          large: line.large === 1,
          clientEvents: false,
        },
      };
    case "members":
      return {
        kind: "members",
        channel: channelOf(line),
        uids: line.uids,
        reset: line.reset !== 0,
      };
    case "list":
      return {
        kind: "list",
        channel: channelOf(line),
        list: line.list,
        uids: line.uids,
        reset: line.reset !== 0,
      };
    case "message":
      return toMessageLine(line, maxPayloadBytes);
    case "position":
      return {
        kind: "position",
        uid: line.uid,
        channel: channelOf(line),
        readSeq: line.read_seq,
        deletedSeq: line.deleted_seq ?? 0,
      };
    case "system_uid":
      return { kind: "system_uid", uid: line.uid };
  }
}

function channelOf(line: { readonly channel_id: string; readonly channel_type: 1 | 2 }) {
  return { id: line.channel_id, type: line.channel_type };
}

function toMessageLine(
  line: Static<Lines["message"]>,
  maxPayloadBytes: number,
): ImportLine | Refusal {
  const sourceId = String(line.message_id);
  if (!isSourceId(sourceId))
    return refusal("message_id must be an integer from 1 to 18446744073709551615");
  const decoded = decodeBase64(line.payload);
  if (decoded === undefined)
    return { code: "bad_payload", message: "payload must be standard base64 with padding" };
  const text = line.stream_data === undefined ? undefined : decodeBase64(line.stream_data);
  if (line.stream_data !== undefined && text === undefined)
    return { code: "bad_payload", message: "stream_data must be standard base64 with padding" };
  const payload = text === undefined ? decoded : withStreamText(decoded, text);
  if (payload.length > maxPayloadBytes)
    return { code: "too_large", message: `The payload has more than ${maxPayloadBytes} bytes` };
  const { setting = 0, topic = "" } = line;
  return {
    kind: "message",
    message: {
      channel: channelOf(line),
      fromUid: line.from_uid,
      clientMsgNo: line.client_msg_no ?? "",
      messageSeq: line.message_seq,
      sourceId,
      timestampMs: line.timestamp * 1000,
      expireS: line.expire ?? 0,
      passthrough: setting === 0 && topic === "" ? undefined : { setting, topic },
      payload,
    },
  };
}

/** Returns the payload of a stream's message, with the text of the stream as its content. */
export function withStreamText(payload: Uint8Array, text: Uint8Array): Uint8Array {
  const content = Buffer.from(text).toString();
  return Buffer.from(JSON.stringify({ type: 1, ...fieldsOf(payload), content }));
}

function fieldsOf(payload: Uint8Array): object {
  try {
    const fields: unknown = JSON.parse(Buffer.from(payload).toString());
    return typeof fields === "object" && fields !== null && !Array.isArray(fields) ? fields : {};
  } catch {
    return {};
  }
}
