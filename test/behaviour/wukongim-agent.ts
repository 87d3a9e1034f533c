// An app on WuKongIM's JavaScript SDK, for tests: bundled with the SDK for a browser's page, or for
// Node, where each evaluation of the bundle is a copy of its own. State: the SDK's, and what its
// listeners heard.

import { WKSDK } from "wukongimjssdk/lib/sdk.js";

export interface Start {
  readonly addr: string;
  readonly uid: string;
  readonly token: string;
  readonly heartbeatInterval: number;
}

/** What the listeners heard so far. */
export interface Heard {
  readonly statuses: readonly number[];
  readonly messages: readonly Received[];
  readonly commands: readonly string[];
  readonly acks: readonly { readonly seq: number; readonly reason: number }[];
  /** The SDK connects again by itself when its socket closes. */
  readonly reconnects: boolean;
}

interface Received {
  readonly text: string;
  readonly from: string;
  readonly channel: string;
  readonly type: number;
  readonly seq: number;
}

const statuses: number[] = [];
const messages: Received[] = [];
const commands: string[] = [];
const acks: { seq: number; reason: number }[] = [];

/** The parts of the SDK that its types hide. */
interface Inside {
  readonly needReconnect: boolean;
  readonly ws: { readonly ws: WebSocket } | undefined;
  sendPing(): void;
}

const sdk = WKSDK.shared();
const inside = (): Inside => sdk.connectManager as unknown as Inside;

export function start({ addr, uid, token, heartbeatInterval }: Start): void {
  Object.assign(sdk.config, { addr, uid, token, heartbeatInterval });
  outlivePings();
  sdk.connectManager.addConnectStatusListener((status: number) => {
    statuses.push(status);
  });
  sdk.chatManager.addMessageListener((message) => {
    if (!message.messageSeq) return; // one's own, before it is sent
    messages.push({
      text: (message.content as { text?: string }).text ?? "",
      from: message.fromUID,
      channel: message.channel.channelID,
      type: message.channel.channelType,
      seq: message.messageSeq,
    });
  });
  sdk.chatManager.addCMDListener((message) => {
    commands.push((message.content as { cmd?: string }).cmd ?? "");
  });
  sdk.chatManager.addMessageStatusListener((ack) => {
    acks.push({ seq: ack.messageSeq, reason: ack.reasonCode });
  });
  sdk.connect();
}

/**
 * The SDK's heartbeat goes on while it connects again, and throws when it falls between the new
 * socket and its opening: that would end Node, and is an error of the page.
 */
function outlivePings(): void {
  const manager = inside();
  const sendPing = manager.sendPing.bind(manager);
  manager.sendPing = () => {
    try {
      sendPing();
    } catch (error) {
      if (manager.ws?.ws.readyState !== WebSocket.CONNECTING) throw error;
    }
  };
}

export function heard(): Heard {
  const reconnects = inside().needReconnect;
  return { statuses, messages, commands, acks, reconnects };
}

export function send(id: string, type: number, text: string): void {
  sdk.chatManager.send(sdk.newMessageText(text), sdk.newChannel(id, type));
}

/** The connection is lost. */
export function drop(): void {
  inside().ws?.ws.close();
}

export function stop(): void {
  sdk.disconnect();
}
