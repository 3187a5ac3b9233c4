// Makes the pages live: everything here is a comfort over pages that work without it.
// Nothing is evaluated, nothing is written as HTML: text goes in by textContent, markup comes from the server.
(() => {
  'use strict'
  const root = document.documentElement
  const find = (selector, from = document) => from.querySelector(selector)
  const all = (selector, from = document) => [...from.querySelectorAll(selector)]
  const remember = (name, value) => { document.cookie = `wakeboard_${name}=${encodeURIComponent(value)};path=/;max-age=31536000;samesite=lax` }
  const kept = {
    read(name) { try { return localStorage.getItem(name) } catch { return null } },
    write(name, value) { try { localStorage.setItem(name, value) } catch { /* storage may be denied */ } },
  }
  root.classList.add('js')

  // htmx: its HTML goes through one Trusted Types policy; a <details> that a person opened stays open over a morph.
  htmx.registerExtension('tt', {
    init(api) {
      if (window.trustedTypes) api.initSecurity(trustedTypes.createPolicy('htmx', { createHTML: text => text, createScript: () => '' }))
    },
  })
  htmx.registerExtension('keep-open', {
    htmx_before_morph_attr(element, detail) {
      return !(element.tagName === 'DETAILS' && detail.attrName === 'open')
    },
  })

  // Relative times: the server's clock, not this machine's.
  let skew = Number(root.dataset.now) * 1000 - Date.now()
  const amount = seconds => {
    const s = Math.max(0, Math.round(seconds))
    if (s < 60) return `${s} s`
    if (s < 3600) return `${Math.floor(s / 60)} min`
    if (s < 36000 && s % 3600 >= 60) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`
    if (s < 172800) return `${Math.floor(s / 3600)} h`
    return `${Math.floor(s / 86400)} d`
  }
  const worded = (element, now) => {
    const seconds = (now - Date.parse(element.dateTime)) / 1000
    if (element.dataset.relative === 'elapsed') return amount(seconds)
    return seconds >= 0 ? `${amount(seconds)} ago` : `in ${amount(-seconds)}`
  }
  const tick = () => {
    const now = Date.now() + skew
    for (const element of all('time[data-relative]')) {
      const text = worded(element, now)
      if (element.textContent !== text) element.textContent = text
    }
    for (const bar of all('meter[data-until]')) bar.value = Math.max(0, (Date.parse(bar.dataset.until) - now) / 1000)
  }
  setInterval(() => { if (!document.hidden) tick() }, 1000)

  // Live regions: paused by the button, by a hidden tab, and while boxes are checked.
  let paused = false
  let misses = 0
  const live = detail => detail.ctx?.sourceElement?.closest?.('[data-live]') === detail.ctx?.sourceElement && detail.ctx?.sourceElement
  const frozen = region => Boolean(find('input[data-row]:checked', region))
  const refresh = () => htmx.trigger(document, 'live:now')
  const pause = to => {
    paused = to
    const button = find('#pause')
    if (!button) return
    button.setAttribute('aria-pressed', String(to))
    find('.label', button).textContent = to ? 'Resume live' : 'Pause live'
    find('use', button).setAttribute('href', find('use', button).getAttribute('href').replace(/#.*/, to ? '#play' : '#pause'))
    if (!to) refresh()
  }
  const stale = sentence => {
    const banner = find('#stale')
    banner.hidden = !sentence
    if (sentence) find('span', banner).textContent = `${sentence} Shown is what was known at ${find('#clock')?.textContent ?? 'an unknown time'}.`
  }
  const missed = status => {
    misses += 1
    if (misses < 2) return
    if (status === 503) stale('The database does not answer.')
    else if (status) stale(`The dashboard answered with an error (${status}).`)
    else stale('The dashboard does not answer.')
  }
  const fresh = headers => {
    misses = 0
    stale('')
    const clock = headers.get('X-Wakeboard-Clock')
    if (!clock) return
    skew = Date.parse(headers.get('X-Wakeboard-As-Of')) - Date.now()
    find('#clock').textContent = clock
  }
  const sentence = ctx => (ctx.response.headers.get('Content-Type') || '').startsWith('text/plain') && ctx.text
  document.addEventListener('htmx:before:request', event => {
    const region = live(event.detail)
    if (region && (paused || document.hidden || frozen(region))) event.preventDefault()
  })
  document.addEventListener('htmx:after:request', event => {
    const { ctx } = event.detail
    if (live(event.detail) && (ctx.response.status < 400)) fresh(ctx.response.headers)
  })
  document.addEventListener('htmx:response:error', event => {
    const { status } = event.detail.ctx.response
    if (live(event.detail)) missed(status)
    else if (status !== 401) toast(sentence(event.detail.ctx) || `That did not work (error ${status}). Look at the list before you try again.`)
  })
  document.addEventListener('htmx:error', event => {
    if (!event.detail.ctx) return
    if (live(event.detail)) missed(0)
    else toast('The dashboard does not answer. Look at the list before you try again.')
  })
  document.addEventListener('htmx:after:swap', () => { tick(); badge(); select() })
  document.addEventListener('visibilitychange', () => { if (!document.hidden && !paused) { tick(); refresh() } })

  // The tab's title and icon say how many things need a person.
  const plain = document.title
  const badge = () => {
    const counted = find('[data-attention]')
    if (!counted) return
    const { attention } = counted.dataset
    document.title = attention === '0' ? plain : `(${attention}) ${plain}`
    const icon = find('link[rel=icon]')
    const wanted = attention === '0' ? icon.dataset.calm : icon.dataset.alert
    if (icon.getAttribute('href') !== wanted) icon.setAttribute('href', wanted)
  }

  // Toasts leave after ten seconds unless someone is reading them; refusals stay.
  const toast = text => {
    const made = find('#toast').content.cloneNode(true)
    find('p', made).textContent = text
    find('#toasts').append(made)
  }
  const leave = element => setTimeout(() => {
    if (element.matches(':hover, :focus-within')) leave(element)
    else element.remove()
  }, 10000)
  const watch = element => { if (!element.dataset.seen && !element.classList.contains('refused')) { element.dataset.seen = '1'; leave(element) } }
  new MutationObserver(() => all('#toasts > .toast').forEach(watch)).observe(find('#toasts'), { childList: true })
  all('#toasts > .toast').forEach(watch)

  // Asking before what cannot be undone: focus is on "Keep", Escape keeps.
  document.addEventListener('htmx:confirm', event => {
    event.preventDefault()
    const { ctx, issueRequest, dropRequest } = event.detail
    const dialog = find('#confirm')
    const reason = find('input', dialog)
    find('[data-say]', dialog).textContent = ctx.confirm.replace('{count}', () => { const count = select(); return count === 1 ? '1 run' : `${count} runs` })
    find('[value=yes]', dialog).textContent = ctx.sourceElement.dataset.does || 'Do it'
    reason.value = ''
    dialog.returnValue = 'keep'
    dialog.addEventListener('close', () => {
      if (dialog.returnValue !== 'yes') { dropRequest(); return }
      if (reason.value.trim()) ctx.request.body?.set?.('reason', reason.value.trim())
      issueRequest()
    }, { once: true })
    dialog.showModal()
  })

  // Checked rows: the list stands still and the bar says so.
  const boxes = () => all('input[data-row]')
  const select = () => {
    const count = boxes().filter(box => box.checked).length
    for (const bar of all('.bulk')) {
      bar.classList.toggle('on', count > 0)
      for (const place of all('[data-count]', bar)) place.textContent = String(count)
    }
    const every = find('input[data-check-all]')
    if (every) { every.checked = count > 0 && count === boxes().length; every.indeterminate = count > 0 && !every.checked }
    return count
  }
  const clear = () => {
    boxes().forEach(box => { box.checked = false })
    all('.bulk input[type=checkbox]').forEach(box => { box.checked = false })
    select()
  }
  let last = null
  document.addEventListener('click', event => {
    const box = event.target.closest('input[data-row]')
    if (box) {
      const list = boxes()
      if (event.shiftKey && last && list.includes(last)) {
        const [from, to] = [list.indexOf(last), list.indexOf(box)].sort((a, b) => a - b)
        list.slice(from, to + 1).forEach(each => { each.checked = box.checked })
      }
      last = box
      if (!select()) refresh()
      return
    }
    const button = event.target.closest('[data-do]')
    if (button) commands[button.dataset.do]?.(button)
  })
  document.addEventListener('change', event => {
    const { target } = event
    if (target.matches('input[data-check-all]')) {
      boxes().forEach(box => { box.checked = target.checked })
      if (!select()) refresh()
    }
    if (target.matches('select[data-submit]')) target.form.requestSubmit()
    if (target.id === 'theme') { root.dataset.theme = target.value; remember('theme', target.value) }
    if (target.id === 'density') { root.dataset.density = target.value; remember('density', target.value) }
    if (target.id === 'zone') { remember('zone', target.value); location.reload() }
    if (target.id === 'keys-on') kept.write('wakeboard-keys', target.checked ? 'on' : 'off')
  })
  document.addEventListener('selection:clear', clear)

  const copy = async button => {
    const from = document.getElementById(button.dataset.copyFrom)
    const text = from?.textContent || button.dataset.copy || location.href
    try {
      await navigator.clipboard.writeText(text)
      toast('Copied.')
    } catch {
      const box = document.createElement('textarea')
      box.value = text
      button.after(box)
      box.select()
    }
  }
  const commands = {
    pause: () => pause(!paused),
    keys: () => find('#keys').showModal(),
    close: button => button.closest('.toast').remove(),
    clear: () => { clear(); refresh() },
    refresh,
    copy,
  }

  // Keyboard: never while typing, off when the operator says so (WCAG 2.1.4).
  const rows = () => all('tbody tr[id]')
  const current = () => document.activeElement?.closest?.('tbody tr[id]')
  const step = by => {
    const list = rows()
    if (!list.length) return
    const at = list.indexOf(current())
    const row = list[Math.min(list.length - 1, Math.max(0, at + by))]
    const goal = find('a, button, input', row) || row
    goal.focus()
    row.scrollIntoView({ block: 'nearest' })
  }
  const press = key => {
    const bar = find('.bulk.on')
    const place = bar || current() || find('[data-verbs]')
    place && find(`[data-key="${key}"]`, place)?.click()
  }
  const places = { o: '/', r: '/runs', e: '/errors', l: '/leases', s: '/schedules', t: '/types', w: '/workers', a: '/audit', n: '/night' }
  let going = false
  const pressed = {
    j: () => step(1),
    k: () => step(-1),
    x: () => find('input[data-row]', current() || root)?.click(),
    o: () => current() && find('a', current())?.click(),
    r: () => press('r'),
    c: () => press('c'),
    p: () => pause(!paused),
    '/': () => find('[data-filter]')?.focus(),
    '?': () => find('#keys').showModal(),
    g: () => { going = true; setTimeout(() => { going = false }, 1500) },
  }
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return
    if (event.target.closest('input:not([type=checkbox]), textarea, select, [contenteditable], dialog[open]')) return
    if (kept.read('wakeboard-keys') === 'off' && event.key !== '?') return
    if (going && places[event.key]) { event.preventDefault(); location.assign(places[event.key]); return }
    if (!pressed[event.key]) return
    event.preventDefault()
    pressed[event.key]()
  })
  document.addEventListener('click', event => {
    for (const menu of all('details.menu[open]')) if (!menu.contains(event.target)) menu.open = false
  })

  const own = Intl.DateTimeFormat().resolvedOptions().timeZone
  const zone = find('#zone')
  if (zone && own && !all('option', zone).some(option => option.value === own)) zone.add(new Option(`${own} (this browser)`, own))
  const switchKeys = find('#keys-on')
  if (switchKeys) switchKeys.checked = kept.read('wakeboard-keys') !== 'off'
  tick(); badge(); select()
})()
