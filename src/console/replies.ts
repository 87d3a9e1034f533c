// Types of the replies that the console reads. The OpenAPI document describes them.

export interface NodeRow {
  readonly id: string;
  readonly version: string;
  readonly uptime: number;
  readonly sessions: number;
  readonly load: number;
  readonly draining: 0 | 1;
  readonly address: string;
  readonly tcp_address: string;
}

export interface SessionRow {
  readonly id: string;
  readonly uid: string;
  readonly ip: string;
  readonly listener: string;
  readonly uptime: number;
  readonly pending_bytes: number;
  readonly device: string;
  readonly device_level: 0 | 1;
  readonly device_id: string;
  readonly format: string;
  readonly version: number;
  readonly node_id: string;
}

export interface ClosedRow extends SessionRow {
  readonly refused: 0 | 1;
  readonly ended: string;
  readonly reason: string;
  readonly message: string;
  readonly code: number;
  readonly error?: string;
  readonly origin?: string;
}

interface SessionsPage<Row> {
  readonly node_id: string;
  readonly connections: readonly Row[];
  readonly total: number;
}
export type OpenPage = SessionsPage<SessionRow>;
export type ClosedPage = SessionsPage<ClosedRow>;

export interface ErrorsPage {
  readonly node_id: string;
  readonly errors: readonly {
    readonly time: string;
    readonly level: "warn" | "error" | "fatal";
    readonly message: string;
    readonly reason: string;
    readonly count: number;
  }[];
}

export interface Busiest {
  readonly node_id: string;
  readonly window_s: number;
  readonly channels: readonly {
    readonly channel_id: string;
    readonly channel_type: number;
    readonly uid?: string;
    readonly messages: number;
    readonly events: number;
  }[];
}

export interface ChannelState {
  readonly ban: 0 | 1;
  readonly disband: 0 | 1;
  readonly send_ban: 0 | 1;
  readonly allow_stranger: 0 | 1;
  readonly large: 0 | 1;
  readonly subscriber_count: number;
  readonly blacklist_count: number;
  readonly whitelist_count: number;
  readonly last_message_seq: number;
}

export interface MessageRow {
  readonly message_id: number;
  readonly message_idstr: string;
  readonly message_seq: number;
  readonly client_msg_no: string;
  readonly from_uid: string;
  readonly channel_id: string;
  readonly channel_type: number;
  readonly timestamp_ms: number;
  readonly payload: string;
  readonly stream?: { readonly state: string; readonly text: string };
}

export interface MessagesPage {
  readonly messages: readonly MessageRow[];
  readonly head_seq: number;
  readonly more: 0 | 1;
}

export interface Devices {
  readonly devices: readonly {
    readonly device_flag: number;
    readonly device_level: 0 | 1;
    readonly has_token: 0 | 1;
  }[];
  readonly sessions: readonly {
    readonly session_id: string;
    readonly node_id: string;
    readonly device_flag: number;
    readonly device_level: 0 | 1;
    readonly device_id: string;
  }[];
}

export interface Conversation {
  readonly channel_id: string;
  readonly channel_type: number;
  readonly unread: number;
  readonly last_msg_seq: number;
  readonly readed_to_msg_seq: number;
  readonly timestamp: number;
}

export interface Setting {
  readonly key: string;
  readonly value?: unknown;
  readonly is_secret: 0 | 1;
  readonly is_set: 0 | 1;
  readonly source: string;
  readonly description: string;
  readonly unit?: string;
}

export interface Configuration {
  readonly node_id: string;
  readonly version: string;
  readonly settings: readonly Setting[];
}

export const DEVICE_NAMES = ["app", "web", "desktop"];
