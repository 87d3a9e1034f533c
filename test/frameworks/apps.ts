// Apps for the frameworks: the code of a page in docs/frameworks, and the files that make it an
// app. Each app shows the component `Chat` with the login in the query of its address, and has a
// button that removes and adds the component.

import { blocks, readPage } from "../docs/pages.ts";

/** Source files by name. */
export type Sources = Readonly<Record<string, string>>;

const NAME = /^(?:\/\/|<!--) (\S+)(?: -->)?\n/;

/** Returns the code of a page. The first line of each block is a comment with the file's name. */
export function sourcesOf(page: string): Sources {
  return Object.fromEntries(
    blocks(readPage(`docs/frameworks/${page}.md`)).map(({ text }) => [
      NAME.exec(text)?.[1] ?? "",
      text.replace(NAME, ""),
    ]),
  );
}

const json = (value: object) => JSON.stringify(value);
const LOGIN = "Object.fromEntries(new URLSearchParams(location.search))";
const page = (script: string) =>
  `<!doctype html><div id="app"></div><script type="module" src="${script}"></script>`;
const typeScript = (options: object) =>
  json({
    compilerOptions: {
      ...{ strict: true, noEmit: true, skipLibCheck: true, target: "ES2022" },
      ...{ module: "ESNext", moduleResolution: "bundler", lib: ["ES2022", "DOM", "DOM.Iterable"] },
      ...{ types: [], noUncheckedIndexedAccess: true, exactOptionalPropertyTypes: true },
      ...options,
    },
    include: ["**/*"],
    exclude: ["node_modules", "dist"],
  });

export const REACT: Sources = {
  ...sourcesOf("react"),
  "index.html": page("/main.tsx"),
  "tsconfig.json": typeScript({ jsx: "react-jsx" }),
  "vite.config.mjs": `import react from "@vitejs/plugin-react";
export default { plugins: [react()] };
`,
  "main.tsx": `import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { Chat } from "./Chat";

const { url = "", uid = "", token = "" } = ${LOGIN};

function App() {
  const [isOpen, setOpen] = useState(true);
  return (
    <>
      <button onClick={() => setOpen(!isOpen)}>{isOpen ? "Leave" : "Join"}</button>
      {isOpen && <Chat url={url} uid={uid} token={token} room="lobby" />}
    </>
  );
}

createRoot(document.getElementById("app") ?? document.body).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
`,
};

export const VUE: Sources = {
  ...sourcesOf("vue"),
  "index.html": page("/main.ts"),
  "tsconfig.json": typeScript({}),
  "vite.config.mjs": `import vue from "@vitejs/plugin-vue";
export default { plugins: [vue()] };
`,
  "main.ts": `import { createApp } from "vue";
import App from "./App.vue";

createApp(App).mount("#app");
`,
  "App.vue": `<script setup lang="ts">
import { ref } from "vue";
import Chat from "./Chat.vue";

const { url = "", uid = "", token = "" } = ${LOGIN};
const isOpen = ref(true);
</script>

<template>
  <button @click="isOpen = !isOpen">{{ isOpen ? "Leave" : "Join" }}</button>
  <Chat v-if="isOpen" :url :uid :token room="lobby" />
</template>
`,
};

export const SVELTE: Sources = {
  ...sourcesOf("svelte"),
  "index.html": page("/main.ts"),
  "tsconfig.json": typeScript({ verbatimModuleSyntax: true, types: ["svelte"] }),
  "vite.config.mjs": `import { svelte } from "@sveltejs/vite-plugin-svelte";
export default { plugins: [svelte()] };
`,
  "main.ts": `import { mount } from "svelte";
import App from "./App.svelte";

mount(App, { target: document.getElementById("app") ?? document.body });
`,
  "App.svelte": `<script lang="ts">
  import Chat from "./Chat.svelte";

  const { url = "", uid = "", token = "" } = ${LOGIN};
  let isOpen = $state(true);
</script>

<button onclick={() => (isOpen = !isOpen)}>{isOpen ? "Leave" : "Join"}</button>
{#if isOpen}<Chat {url} {uid} {token} room="lobby" />{/if}
`,
};

export const ANGULAR: Sources = {
  ...sourcesOf("angular"),
  "index.html": `<!doctype html><app-root></app-root><script type="module" src="main.js"></script>`,
  "tsconfig.json": json({
    compilerOptions: {
      ...{ strict: true, noEmit: false, skipLibCheck: true, target: "ES2022", outDir: "out" },
      ...{ module: "ESNext", moduleResolution: "bundler", lib: ["ES2022", "DOM", "DOM.Iterable"] },
      ...{ types: [], noPropertyAccessFromIndexSignature: true },
    },
    angularCompilerOptions: { strictTemplates: true, strictInjectionParameters: true },
    files: ["main.ts"],
  }),
  "main.ts": `import "@angular/compiler"; // links the packages of Angular when they are loaded
import { Component, provideZonelessChangeDetection, signal } from "@angular/core";
import { bootstrapApplication } from "@angular/platform-browser";
import { Chat } from "./chat";

@Component({
  selector: "app-root",
  imports: [Chat],
  template: \`
    <button (click)="isOpen.set(!isOpen())">{{ isOpen() ? "Leave" : "Join" }}</button>
    @if (isOpen()) {
      <app-chat [url]="url" [uid]="uid" [token]="token" roomId="lobby" />
    }
  \`,
})
class App {
  readonly login: Record<string, string | undefined> = ${LOGIN};
  readonly url = this.login["url"] ?? "";
  readonly uid = this.login["uid"] ?? "";
  readonly token = this.login["token"] ?? "";
  readonly isOpen = signal(true);
}

void bootstrapApplication(App, { providers: [provideZonelessChangeDetection()] });
`,
};

const { "Chat.tsx": chat = "" } = sourcesOf("react");

export const NEXT: Sources = {
  ...sourcesOf("nextjs"),
  "app/Chat.tsx": `"use client";\n\n${chat}`,
  "app/layout.tsx": `import type { ReactNode } from "react";

export default function Layout({ children }: { children: ReactNode }) {
  return (
    <html>
      <body>{children}</body>
    </html>
  );
}
`,
  // the packages are symbolic links to a folder outside the app
  "next.config.mjs": `export default { turbopack: { root: "/" } };\n`,
  "package.json": '{"private":true}',
};
