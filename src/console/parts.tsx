// Components that the pages share. Text from users is always shown in text nodes.

import type { ComponentChildren, TargetedInputEvent } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, bodyText } from "./api.ts";
import { shellQuoted } from "./format.ts";
import { linkTo, useApi } from "./hooks.ts";

export function PageHead(props: {
  readonly title: string;
  readonly json?: string | undefined;
  readonly children?: ComponentChildren;
}) {
  return (
    <header class="page-head">
      <h1>{props.title}</h1>
      <div class="page-actions">
        {props.children}
        {props.json !== undefined && <JsonLink path={props.json} />}
      </div>
    </header>
  );
}

export function Card(props: {
  readonly title?: string;
  readonly help?: string | undefined;
  readonly json?: string | undefined;
  readonly aside?: ComponentChildren;
  readonly class?: string;
  readonly children: ComponentChildren;
}) {
  return (
    <section class={`card ${props.class ?? ""}`}>
      {props.title !== undefined && (
        <header class="card-head">
          <h2>
            {props.title}
            {props.help !== undefined && <Help of={props.title}>{props.help}</Help>}
          </h2>
          <div class="page-actions">
            {props.aside}
            {props.json !== undefined && <JsonLink path={props.json} />}
          </div>
        </header>
      )}
      {props.children}
    </section>
  );
}

/** A "?" button that shows a definition. */
export function Help({ of, children }: { readonly of: string; readonly children: string }) {
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const close = (event: Event) => {
      if (
        event instanceof KeyboardEvent
          ? event.key === "Escape"
          : !box.current?.contains(event.target as Node)
      )
        setOpen(false);
    };
    addEventListener("keydown", close);
    addEventListener("pointerdown", close);
    return () => {
      removeEventListener("keydown", close);
      removeEventListener("pointerdown", close);
    };
  }, [isOpen]);
  return (
    <span class="help" ref={box}>
      <button
        type="button"
        class="help-button"
        aria-expanded={isOpen}
        aria-label={`What ${of} means`}
        onClick={() => setOpen(!isOpen)}
      >
        ?
      </button>
      {isOpen && (
        <span class="help-text" role="note">
          {children.replaceAll("`", "")}
        </span>
      )}
    </span>
  );
}

interface FigureProps {
  readonly label: string;
  readonly value: string | undefined;
  readonly help: string;
  readonly note?: string | undefined;
  /** Share of a limit, from 0 to 1. */
  readonly share?: number | undefined;
}

export function Figure({ label, value, help, note, share }: FigureProps) {
  const level = share === undefined ? "" : share > 0.9 ? "bad" : share > 0.8 ? "warn" : "good";
  return (
    <div class="figure">
      <div class="figure-label">
        {label}
        <Help of={label}>{help}</Help>
      </div>
      <div class="figure-value">{value ?? "–"}</div>
      {share !== undefined && (
        <meter
          class={level}
          min={0}
          max={1}
          value={Math.min(1, share)}
          aria-label={`${label}: share of the limit`}
        />
      )}
      {note !== undefined && <div class="figure-note">{note}</div>}
    </div>
  );
}

export function ErrorNote({ error }: { readonly error: Error | undefined }) {
  if (error === undefined) return null;
  const isForbidden = error instanceof ApiError && error.status === 403;
  return (
    <p class="note bad" role="alert">
      {isForbidden ? `Your account may not read this: ${error.message}` : error.message}
    </p>
  );
}

/** Note that replaces a part of the page for which the manager lacks the permission. */
export function Missing({
  permission,
  what,
}: {
  readonly permission: string;
  readonly what: string;
}) {
  return (
    <p class="note">
      Your account may not see {what}: the permission <code>{permission}</code> is missing.
    </p>
  );
}

/** Header of a column of figures, with a button that shows what they mean. */
export function FigureHead({ label, help }: { readonly label: string; readonly help: string }) {
  return (
    <th class="right">
      {label}
      <Help of={label}>{help}</Help>
    </th>
  );
}

/** A part of the page that can be scrolled sideways, also with the keyboard. */
export function Scroll({
  label,
  children,
}: {
  readonly label: string;
  readonly children: ComponentChildren;
}) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be focusable
    <section class="scroll" aria-label={label} tabIndex={0}>
      {children}
    </section>
  );
}

export function Empty({ children }: { readonly children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

/** Buttons for a list with several pages. Shows nothing if the list has only one page. */
export function PageButtons(props: {
  /** Cursor of the current page. Empty for the first page. */
  readonly cursor: string;
  /** Cursor of the next page. Empty on the last page. */
  readonly next: string;
  readonly go: (cursor: string) => void;
}) {
  const { cursor, next, go } = props;
  if (cursor === "" && next === "") return null;
  return (
    <div class="page-actions">
      <button type="button" class="small" disabled={cursor === ""} onClick={() => go("")}>
        First page
      </button>
      <button type="button" class="small" disabled={next === ""} onClick={() => go(next)}>
        Next page
      </button>
    </div>
  );
}

export function UserLink({ uid }: { readonly uid: string }) {
  return <a href={linkTo("user", { uid })}>{uid}</a>;
}

export function ChannelLink(props: {
  readonly id: string;
  readonly type: number;
  readonly uid?: string | undefined;
}) {
  const { id, type, uid } = props;
  const parameters = { id, type: String(type), ...(uid === undefined ? {} : { uid }) };
  return (
    <a href={linkTo("channel", parameters)}>
      {type === 1 && uid !== undefined ? `${uid} ↔ ${id}` : id}
    </a>
  );
}

export function Field({
  label,
  children,
}: {
  readonly label: string;
  readonly children: ComponentChildren;
}) {
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the children are the control
    <label class="field">
      <span>{label}</span>
      {children}
    </label>
  );
}

/** Returns the attributes of an input whose text the caller stores. */
export function textInput(value: string, change: (value: string) => void) {
  return {
    value,
    autocomplete: "off",
    spellcheck: false,
    onInput: (event: TargetedInputEvent<HTMLInputElement>) => change(event.currentTarget.value),
  } as const;
}

export function ChannelTypeSelect(props: {
  readonly value: string;
  readonly change: (value: string) => void;
}) {
  return (
    <select value={props.value} onChange={(event) => props.change(event.currentTarget.value)}>
      <option value="2">group</option>
      <option value="1">personal</option>
    </select>
  );
}

/**
 * A button that is replaced by two buttons, to confirm and to cancel, when it is clicked. Shows the
 * error if the action fails.
 */
export function ActionButton(props: {
  readonly label: string;
  readonly confirm: string;
  readonly act: () => Promise<unknown>;
  readonly class?: string;
}) {
  const [step, setStep] = useState<"idle" | "confirming" | "running">("idle");
  const [error, setError] = useState<Error>();
  const run = async () => {
    setStep("running");
    setError(undefined);
    try {
      await props.act();
    } catch (failure) {
      setError(failure as Error);
    }
    setStep("idle");
  };
  return (
    <span class="action">
      {step === "idle" ? (
        <button type="button" class={props.class ?? "small"} onClick={() => setStep("confirming")}>
          {props.label}
        </button>
      ) : (
        <>
          <button
            type="button"
            class="small danger"
            disabled={step === "running"}
            onClick={() => void run()}
          >
            {props.confirm}
          </button>
          <button type="button" class="small" onClick={() => setStep("idle")}>
            Cancel
          </button>
        </>
      )}
      {error !== undefined && (
        <span class="bad-text" role="alert">
          {error.message}
        </span>
      )}
    </span>
  );
}

/** Shows a call's reply as JSON, and the curl command for the same call. */
function JsonLink({ path }: { readonly path: string }) {
  const api = useApi();
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState<string>();
  const show = async () => {
    setText("Loading …");
    dialog.current?.showModal();
    setText(bodyText(await api.send("GET", path, undefined)));
  };
  return (
    <>
      <a
        class="json-link"
        href={path}
        onClick={(event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          void show();
        }}
      >
        JSON
      </a>
      <dialog ref={dialog} aria-label={`GET ${path}`}>
        {text !== undefined && (
          <>
            <header class="card-head">
              <h2>
                <code>GET {path}</code>
              </h2>
              <button type="button" onClick={() => dialog.current?.close()}>
                Close
              </button>
            </header>
            <CurlLine method="GET" path={path} />
            <pre class="json">{text}</pre>
          </>
        )}
      </dialog>
    </>
  );
}

interface CurlCall {
  readonly method: string;
  readonly path: string;
  readonly body?: string;
}

/** Shows the curl command for a call, with a button that copies it. */
export function CurlLine(call: CurlCall) {
  const line = curlLine(call, useApi().hasCredential);
  const [isCopied, setCopied] = useState(false);
  return (
    <div class="curl">
      <code>{line}</code>
      <button
        type="button"
        class="small"
        onClick={() => void navigator.clipboard?.writeText(line).then(() => setCopied(true))}
      >
        {isCopied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

/** Returns the curl command for a POSIX shell. It contains a variable instead of the token. */
function curlLine({ method, path, body }: CurlCall, hasCredential: boolean): string {
  return [
    "curl -s",
    ...(method === "GET" ? [] : [`-X ${method}`]),
    ...(hasCredential ? ['-H "Authorization: Bearer $JINDOU_TOKEN"'] : []),
    ...(body === undefined
      ? []
      : ["-H 'Content-Type: application/json'", `-d ${shellQuoted(body)}`]),
    shellQuoted(`${location.origin}${path}`),
  ].join(" ");
}
