// Messages of the stand-in for WuKongIM 2.2.5 (import-source.ts): captured messages, and invented
// messages in the same form for channels without captured messages. A test can add messages.

import { usersOf } from "../../../src/compat/wukongim/stored-id.ts";

/** A message with the fields of `/channel/messagesync`. Its id is in `message_idstr`. */
export interface Row {
  readonly message_idstr: string;
  readonly message_seq: number;
  readonly from_uid: string;
  readonly client_msg_no: string;
  readonly timestamp: number;
  readonly payload: string;
  readonly setting: number;
  readonly [field: string]: unknown;
}

interface CapturedPage {
  readonly request: { readonly path: string; readonly body?: string };
  readonly response: { readonly body: string };
}

const SINCE_S = 1_795_650_600;
/** Id that is higher than every captured id. The ids of invented messages follow it. */
const FIRST_ID = 2_125_800_000_000_000_000n;

export class FakeMessages {
  /** Messages by the stored id and the type of their channel. */
  readonly #channels = new Map<string, Row[]>();
  #ids = FIRST_ID;

  constructor(
    pages: readonly CapturedPage[],
    listed: readonly { id: string; type: number; lastSeq: number }[],
  ) {
    const captured = new Map<string, Map<number, Row>>();
    for (const { request, response } of pages) {
      if (request.path !== "/channel/messagesync" || request.body === undefined) continue;
      const { login_uid: uid = "", channel_id: id, channel_type: type } = JSON.parse(request.body);
      const name = nameOf(type === 1 ? [uid, id] : [id], type);
      const rows = captured.get(name) ?? new Map<number, Row>();
      // `message_id` is not used, because JavaScript cannot represent all its digits.
      for (const row of (JSON.parse(response.body || "{}").messages ?? []) as Row[])
        rows.set(row.message_seq, { ...row, expire: 0 });
      captured.set(name, rows);
    }
    for (const { id, type, lastSeq } of listed) {
      const pair = type === 1 ? usersOf(id) : undefined;
      const name = nameOf(pair === undefined ? [id] : [pair.uid, pair.peer], type);
      const rows = captured.get(name) ?? new Map<number, Row>();
      for (let seq = 1; seq <= lastSeq; seq++)
        if (!rows.has(seq)) rows.set(seq, this.#made(seq, pair?.uid ?? "ann"));
      const all = [...rows.values()].filter(({ message_seq: seq }) => seq <= lastSeq);
      this.#channels.set(
        name,
        all.sort((a, b) => a.message_seq - b.message_seq),
      );
    }
  }

  #made(seq: number, from: string): Row {
    this.#ids += 1n;
    return {
      ...{ message_idstr: String(this.#ids), message_seq: seq, from_uid: from, setting: 0 },
      ...{ client_msg_no: `made-${this.#ids}`, timestamp: SINCE_S + seq, expire: 0 },
      payload: Buffer.from(`{"type":1,"content":"${seq}"}`).toString("base64"),
    };
  }

  /** Adds messages of a user to the channel with this stored id. */
  add(id: string, type: number, from: string, count: number): void {
    const rows = this.of(id, type);
    for (let added = 0; added < count; added++)
      rows.push(this.#made((rows.at(-1)?.message_seq ?? 0) + 1, from));
  }

  of(id: string, type: number): Row[] {
    const pair = type === 1 ? usersOf(id) : undefined;
    const name = nameOf(pair === undefined ? [id] : [pair.uid, pair.peer], type);
    const rows = this.#channels.get(name);
    if (rows !== undefined) return rows;
    const added: Row[] = [];
    this.#channels.set(name, added);
    return added;
  }

  /** Returns the reply to `/channel/messagesync`. */
  page(body: string): string {
    const {
      login_uid: uid,
      channel_id: id,
      channel_type: type,
      start_message_seq: start,
      limit,
    } = JSON.parse(body);
    // WuKongIM returns an empty list for the stored id of a personal channel.
    const rows = this.#channels.get(nameOf(type === 1 ? [uid, id] : [id], type)) ?? [];
    const page =
      start === 0
        ? rows.slice(-limit)
        : rows.filter((row) => row.message_seq >= start).slice(0, limit);
    const more = page.length === limit ? 1 : 0;
    const texts = page.map(
      ({ message_idstr: label, message_id: _, ...row }) =>
        `{"message_id":${label},"message_idstr":"${label}",${JSON.stringify(row).slice(1)}`,
    );
    return `{"start_message_seq":${start},"end_message_seq":0,"more":${more},"messages":[${texts.join()}]}`;
  }
}

function nameOf(users: readonly string[], type: number): string {
  return `${type}:${[...users].sort().join("@")}`;
}
