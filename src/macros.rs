//! What all the layers, and all the services, have in common.

/// The family of accessors that every service has.
macro_rules! inner_service_accessors {
    () => {
        /// The inner service.
        pub fn get_ref(&self) -> &S {
            &self.inner
        }

        /// The inner service.
        pub fn get_mut(&mut self) -> &mut S {
            &mut self.inner
        }

        /// Gives the inner service back.
        pub fn into_inner(self) -> S {
            self.inner
        }
    };
}

/// The settings of every layer that reports: `$counted` is what its limit is for, in a `$message`,
/// `$or` who else finds a breach, and `$layer` makes one.
macro_rules! reporting_settings {
    ($Config:ty, $counted:literal, $message:literal, $or:literal, $layer:literal) => {
        /// A name for this limit, to be found in its errors.
        ///
        /// # Examples
        ///
        /// ```
        /// # use tower_body_limit::*;
        #[doc = concat!("let layer = ", $layer, "(10).label(\"uploads\");")]
        /// assert!(format!("{layer:?}").contains(r#"label: Some("uploads")"#));
        /// ```
        #[must_use]
        pub fn label(mut self, label: &'static str) -> Self {
            self.config_mut().label = Some(label);
            self
        }

        #[doc = concat!("Calls `f` for each ", $counted, " that is found to be too large.")]
        ///
        /// # Callbacks
        ///
        #[doc = concat!("Runs in the task that reads the body, or that ", $or, ".")]
        /// It does not run while the thread is panicking.
        ///
        /// # Examples
        ///
        /// ```
        /// # use tower_body_limit::*;
        #[doc = concat!("let layer = ", $layer, "(10).on_breach(|error| eprintln!(\"{error}\"));")]
        /// assert!(format!("{layer:?}").contains(r#"on_breach: true"#));
        /// ```
        #[must_use]
        pub fn on_breach<F>(mut self, f: F) -> Self
        where
            F: Fn(&TooLarge) + Send + Sync + 'static,
        {
            Arc::make_mut(&mut self.config_mut().callbacks).set_on_breach(f);
            self
        }

        #[doc = concat!("Calls `f` once for each ", $message, " when its body is over.")]
        ///
        /// It has ended or failed by then, is dropped, or is taken out of its
        /// [`LimitedBody`](crate::LimitedBody::into_inner).
        ///
        /// # Callbacks
        ///
        /// Runs in the task that reads or drops the body. It does not run while the thread is
        /// panicking.
        ///
        /// # Examples
        ///
        /// ```
        /// # use tower_body_limit::*;
        #[doc = concat!("let layer = ", $layer, "(10).on_end(|end| println!(\"{} bytes\", end.read()));")]
        /// assert!(format!("{layer:?}").contains(r#"on_end: true"#));
        /// ```
        #[must_use]
        pub fn on_end<F>(mut self, f: F) -> Self
        where
            F: Fn(&$crate::BodyEnd) + Send + Sync + 'static,
        {
            Arc::make_mut(&mut self.config_mut().callbacks).set_on_end(f);
            self
        }

        fn config_mut(&mut self) -> &mut $Config {
            Arc::make_mut(&mut self.config)
        }
    };
}

/// The settings of every layer that limits whole messages. `$Limit` is the type that overrides the
/// limit for one.
macro_rules! limit_settings {
    ($message:literal, $Limit:literal, $layer:literal) => {
        /// How far
        #[doc = concat!("a [`", $Limit, "`](crate::", $Limit, ")")]
        /// may raise the limit, `None` for as far as it likes. Without this it can only lower it.
        ///
        /// # Examples
        ///
        /// ```
        /// # use tower_body_limit::*;
        #[doc = concat!("let layer = ", $layer, "(10).override_ceiling(1000);")]
        /// assert!(format!("{layer:?}").contains(r#"override_ceiling: Some(Some(1000))"#));
        /// ```
        #[must_use]
        pub fn override_ceiling(mut self, ceiling: impl Into<Option<u64>>) -> Self {
            self.config_mut().limits.override_ceiling = Some(ceiling.into());
            self
        }

        reporting_settings!(
            Config,
            $message,
            $message,
            "calls the service if the declared length settled it",
            $layer
        );
    };
}

pub(crate) use {inner_service_accessors, limit_settings, reporting_settings};
